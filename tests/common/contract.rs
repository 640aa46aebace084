//! How much of the contract the module has to hold by now.

/// Commands that have to be there, by family. Public cases that use others are skipped for as long
/// as those are missing, and the random drivers leave out families that are missing.
pub const REQUIRED: &[(&str, &[&str])] = &[
    ("SLUICE", &["VERSION", "CLOCK"]),
    ("CL", &["THROTTLE"]),
    ("TB", &["TAKE", "PEEK", "REFUND", "SET", "RESET", "DRAIN", "BAN", "HOLD", "SETTLE", "INFO"]),
    ("LB", &["TAKE", "PEEK", "REFUND", "SET", "RESET", "INFO"]),
    ("SEM", &["ACQUIRE", "RELEASE", "RENEW", "PEEK", "SET", "INFO"]),
    ("GATE", &["SET", "PASS", "MPASS", "LEAVE", "PEEK", "INFO"]),
    ("SEM", &["ACQUIRE", "RELEASE", "RENEW", "PEEK", "SET", "INFO"]),
    ("GATE", &["SET", "PASS", "MPASS", "LEAVE", "PEEK", "INFO"]),
    ("HOT", &["SET", "EXCEPT", "TAKE", "PEEK", "TOP", "INFO"]),
    ("RQ", &["PUSH", "MPUSH", "CLAIM", "MCLAIM", "ACK", "NACK", "EXTEND", "NEXT", "REQUEUE", "REDRIVE"]),
    ("RQ", &["DEL", "PURGE", "GET", "LIST", "LEN", "INFO", "SET", "PAUSE", "RESUME", "MOVE"]),
];

/// Fails for the first required command that is not among those registered (in any letter case).
#[track_caller]
pub fn assert_required(registered: &[String]) {
    for (family, commands) in REQUIRED {
        for command in *commands {
            let name = format!("{family}.{command}");
            let there = registered.iter().any(|r| r.eq_ignore_ascii_case(&name));
            assert!(there, "{name} is not registered; there are {registered:?}");
        }
    }
}
