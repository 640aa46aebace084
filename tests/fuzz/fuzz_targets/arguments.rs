//! The reader of arguments, on words of any bytes: it never goes past the end, and what it accepts
//! as a number prints as the same word.
//!
//! It is built here from its own source over a stand-in for the server's strings.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// What the reader needs of the server: its strings.
mod api {
    pub type RawString = *mut Vec<u8>;

    /// # Safety
    /// The string is live and unchanged for `'a`.
    pub unsafe fn bytes<'a>(s: *const Vec<u8>) -> &'a [u8] {
        // SAFETY: by this function's contract.
        unsafe { &*s }
    }
}

mod engine {
    pub use sluice::engine::time;
}

#[allow(dead_code)]
#[path = "../../src/server/args.rs"]
mod args;
#[allow(dead_code)]
#[path = "../../src/server/error.rs"]
mod error;

fuzz_target!(|data: &[u8]| {
    let mut words: Vec<Vec<u8>> = data.split(|b| *b == 0xFE).map(<[u8]>::to_vec).collect();
    let argv: Vec<api::RawString> = words.iter_mut().map(|w| w as *mut Vec<u8>).collect();
    for word in &words {
        if let Some(n) = args::parse_int(word) {
            assert_eq!(n.to_string().as_bytes(), word);
        }
        args::is(word, "COUNT");
    }
    for way in 0..6 {
        // SAFETY: the words live as long as the reader.
        let mut reader = unsafe { args::Args::new(&argv, 0) };
        let mut left = reader.left();
        while reader.more() {
            let read = match way {
                0 => reader.next("a word").map(|_| ()),
                1 => reader.int("n", -5, 1_000_000).map(|n| assert!((-5..=1_000_000).contains(&n))),
                2 => reader.count("n").map(|n| assert!(n >= 0)),
                3 => reader.duration("ms", 1).map(|n| assert!(n >= 1)),
                4 => reader.instant("at").map(|n| assert!(n >= 0)),
                _ => reader.label("name").map(|name| assert!(!name.is_empty() && name.len() <= 512)),
            };
            // A refusal has a text that breaks no protocol.
            if let Err(e) = read {
                assert!(!e.text().to_bytes().iter().any(|b| matches!(b, b'\r' | b'\n')));
                break;
            }
            assert!(reader.left() < left, "it does not get on");
            left = reader.left();
        }
        assert!(reader.more() || reader.end().is_ok());
    }
});
