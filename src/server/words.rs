//! Keywords and integers as clients write them.

/// Whether an argument is this keyword (given in upper case), in any letter case.
#[inline]
pub fn is(word: &[u8], keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword.as_bytes())
}

/// An integer as Redis reads it.
pub fn parse_int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    /// So many digits never overflow.
    const SAFE: usize = 18;
    match digits {
        [b'0'] => (!negative).then_some(0),
        [b'1'..=b'9', ..] if digits.len() <= SAFE => {
            let mut n = 0i64;
            for d in digits {
                let d = d.wrapping_sub(b'0');
                if d > 9 {
                    return None;
                }
                n = n * 10 + i64::from(d);
            }
            Some(if negative { -n } else { n })
        }
        [b'1'..=b'9', ..] if digits.len() == SAFE + 1 => digits.iter().try_fold(0i64, |n, d| {
            let d = i64::from(d.checked_sub(b'0').filter(|d| *d <= 9)?);
            let n = n.checked_mul(10)?;
            if negative { n.checked_sub(d) } else { n.checked_add(d) }
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_redis_reads_them() {
        for (text, n) in [
            ("0", 0),
            ("7", 7),
            ("-7", -7),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_int(text.as_bytes()), Some(n), "{text}");
        }
        for text in [
            "",
            "-",
            "-0",
            "+1",
            " 1",
            "1 ",
            "01",
            "1.5",
            "1e3",
            "0x10",
            "9223372036854775808",
            "99999999999999999999",
            "x",
        ] {
            assert_eq!(parse_int(text.as_bytes()), None, "{text:?}");
        }
    }
}
