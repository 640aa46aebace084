//! Error replies. The text begins with its code, as Redis wants it, and says what was wrong and
//! what was expected.

use std::borrow::Cow;
use std::ffi::CString;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Cow<'static, str>);

impl Error {
    /// A fixed text, with its code.
    pub const fn new(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// A composed text, with its code.
    pub fn of(text: String) -> Self {
        Self(Cow::Owned(text))
    }

    pub const WRONG_TYPE: Self =
        Self::new("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// To a client that waited here for what is elsewhere by now: it asks again, and is told by the
    /// server where to go.
    pub const SLOT_MOVED: Self =
        Self::new("TRYAGAIN the slot of this key is served by another node now; ask again");
    /// To a client that waited, as the server says it of its own commands.
    pub const ROLE_LOST: Self = Self::new(
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    );
    pub const UNBLOCKED: Self = Self::new("UNBLOCKED client unblocked via CLIENT UNBLOCK");
    /// To a client that waited, when its rights were taken away meanwhile.
    pub const NO_PERMISSION: Self =
        Self::new("NOPERM this user has no permissions to run this command on the key any more");
    /// In the server's words.
    pub const OUT_OF_MEMORY: Self = Self::new("OOM command not allowed when used memory > 'maxmemory'.");
    pub const INTERNAL: Self =
        Self::new("ERR internal error in sluice, please report it; the server's log has the place");

    pub fn range(name: &str, low: i64, high: i64) -> Self {
        Self::of(format!("ERR {name} must be between {low} and {high}"))
    }

    pub fn length(name: &str, low: usize, high: usize) -> Self {
        Self::of(format!("ERR {name} must be {low} to {high} bytes"))
    }

    pub fn missing(what: &str) -> Self {
        Self::of(format!("ERR syntax error: {what} is missing"))
    }

    pub fn unknown_option(word: &[u8], expected: &str) -> Self {
        Self::of(format!("ERR syntax error: unknown option '{}', expected {expected}", printable(word)))
    }

    pub fn repeated(name: &str) -> Self {
        Self::of(format!("ERR syntax error: {name} is given twice"))
    }

    /// The text as a C string without line breaks, so that no input can break the protocol.
    pub fn text(&self) -> CString {
        let clean: Vec<u8> =
            self.0.bytes().map(|b| if matches!(b, b'\r' | b'\n' | 0) { b' ' } else { b }).collect();
        CString::new(clean).unwrap_or_default()
    }
}

/// What a client sent, fit for an error text: cut, and without bytes that would break a line.
fn printable(word: &[u8]) -> String {
    const LONGEST: usize = 64;
    word.iter().take(LONGEST).flat_map(|b| std::ascii::escape_default(*b)).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_input_breaks_the_line() {
        let e = Error::unknown_option(b"a\r\n\0\xff", "COST n");
        assert_eq!(
            e.text().to_bytes(),
            br"ERR syntax error: unknown option 'a\r\n\x00\xff', expected COST n"
        );
        assert_eq!(Error::of("ERR a\r\nb".into()).text().to_bytes(), b"ERR a  b");
    }
}
