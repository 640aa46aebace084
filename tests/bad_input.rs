//! Whatever a client sends, against real servers: every command with too few and too many words,
//! wrong types, numbers that are none or out of range, unknown, repeated and unfinished options,
//! any bytes as keys, ids and payloads, forged receipts, and words at random. The answer is an
//! error that names the argument, nothing is changed, and the server goes on.

use crate::common::Reply;
use crate::common::stage::{Stage, numbers, on_stage_alone, payloads, receipt};

/// What a valid call of a command looks like: its required words, and the options that may follow.
/// A placeholder is a number, by the name that its error gives it (`+` is a space) and its bounds:
/// `{cost}` counts from 1, `{period:D}` lasts from 1 ms, `{priority:0:255}`.
struct Form(&'static str, &'static [&'static str]);

const LIMITS: &str = "{capacity} {tokens} {period:D}";
const PUSH_OPTIONS: &[&str] = &[
    "DELAY {delay:0:D}",
    "PRIORITY {priority:0:255}",
    "GROUP g",
    "TTL {ttl:D}",
    "LEASE {lease:D}",
    "MAXDELIVERIES {maxdeliveries:0:C}",
    "DEDUP {dedup:D}",
    "ONDUP REPLACE",
];
const CLAIM_OPTIONS: &[&str] = &[
    "COUNT {count:1:10000}",
    "LEASE {lease:D}",
    "CONSUMER c",
    "GROUP g",
    "MAXBYTES {maxbytes}",
    "NOACK",
    "BLOCK {block:0:D}",
];

const FORMS: &[Form] = &[
    Form("TB.TAKE tb $limits", &["COST {cost}", "ATMOST"]),
    Form("TB.TAKE tb", &["COST {cost}", "FORCE"]),
    Form("TB.TAKE tb", &["COST {cost}", "BLOCK {block:D}"]),
    Form("TB.PEEK tb $limits", &["COST {cost}"]),
    Form("TB.REFUND tb {tokens}", &[]),
    Form("TB.SET tb $limits", &["WARMUP {warmup:0:D}", "LEVEL KEEP"]),
    Form("TB.RESET tb", &[]),
    Form("TB.DRAIN tb $limits", &[]),
    Form("TB.BAN tb {ban:0:D}", &[]),
    Form("TB.HOLD tb $limits COST {cost} TTL {ttl:D}", &["ONEXPIRE REFUND"]),
    Form("TB.SETTLE tb 1 {actual:0:C}", &[]),
    Form("TB.INFO tb", &[]),
    Form("CL.THROTTLE tb {max_burst:0:B} {count} {period:1:31622400} {quantity:0:C}", &[]),
    Form("LB.TAKE lb $limits", &["COST {cost}", "MAXWAIT {maxwait:0:D}", "BLOCK"]),
    Form("LB.PEEK lb $limits", &["COST {cost}", "MAXWAIT {maxwait:0:D}"]),
    Form("LB.REFUND lb {tokens}", &[]),
    Form("LB.SET lb $limits", &[]),
    Form("LB.RESET lb", &[]),
    Form("LB.INFO lb", &[]),
    Form("SEM.ACQUIRE sem {limit}", &["COUNT {count}", "LEASE {lease:D}", "OWNER o", "BLOCK {block:D}"]),
    Form("SEM.RELEASE sem {receipt:R} {receipt:R}", &[]),
    Form("SEM.RENEW sem {ms:D} {receipt:R}", &[]),
    Form("SEM.PEEK sem {limit}", &["COUNT {count}"]),
    Form("SEM.SET sem {limit}", &["LEASE {lease:D}"]),
    Form("SEM.INFO sem", &["HOLDERS"]),
    Form("SEM.HOLDERS sem", &["OWNER o", "CURSOR {cursor:0:R}", "COUNT {count:1:10000}"]),
    Form("GATE.SET gate STAGE a TB $limits WARMUP {warmup:0:D}", &[]),
    Form("GATE.SET gate STAGE a LB $limits STAGE b SEM {limit} LEASE {lease:D}", &[]),
    Form("GATE.PASS gate", &["COST {cost}", "MAXWAIT {maxwait:0:D}", "BLOCK {block:D}"]),
    Form("GATE.PEEK gate", &["COST {cost}", "MAXWAIT {maxwait:0:D}"]),
    Form("GATE.LEAVE gate {receipt:R} {receipt:R}", &[]),
    Form("GATE.INFO gate", &[]),
    Form("HOT.SET hot $limits", &["MAXSUBJECTS {maxsubjects}"]),
    Form("HOT.EXCEPT hot s $limits", &[]),
    Form("HOT.TAKE hot s", &["COST {cost}", "ATMOST"]),
    Form("HOT.PEEK hot s", &["COST {cost}"]),
    Form("HOT.TOP hot", &["COUNT {count}"]),
    Form("HOT.INFO hot", &[]),
    Form("RQ.PUSH q payload", PUSH_OPTIONS),
    Form("RQ.PUSH q payload", &["AT {at:0:I}", "ID 7"]),
    Form("RQ.MPUSH q 2 a b", PUSH_OPTIONS),
    Form("RQ.CLAIM q", CLAIM_OPTIONS),
    Form("RQ.NEXT q RECEIPTS 1 a@1", CLAIM_OPTIONS),
    Form("RQ.ACK q a@1 b@2", &[]),
    Form("RQ.NACK q RECEIPTS 2 a@1 b@2", &["DELAY {delay:0:D}", "BACK", "NOCOUNT", "REASON r"]),
    Form("RQ.NACK q RECEIPTS 1 a@1", &["DEAD", "REASON r"]),
    Form("RQ.EXTEND q {ms:D} a@1", &[]),
    Form("RQ.REQUEUE q", &["STALE {stale:D}", "COUNT {count}"]),
    Form("RQ.REQUEUE q", &["CONSUMER c", "COUNT {count}"]),
    Form("RQ.REQUEUE q", &["ALL"]),
    Form("RQ.REDRIVE q", &["IDS 2 a b", "COUNT {count}", "DELAY {delay:0:D}"]),
    Form("RQ.DEL q a b", &[]),
    Form("RQ.PURGE q DEAD", &["COUNT {count}"]),
    Form("RQ.GET q a", &[]),
    Form("RQ.LIST q READY", &["GROUP g", "NOPAYLOAD", "CURSOR 0", "COUNT {count:1:10000}"]),
    Form("RQ.LEN q READY", &[]),
    Form("RQ.INFO q", &[]),
    Form(
        "RQ.SET q LEASE {lease:D} MAXLEN {maxlen:0:C}",
        &[
            "MAXDELIVERIES {maxdeliveries:0:C}",
            "BACKOFF FIXED {backoff:D}",
            "MAXBYTES {maxbytes:0:C}",
            "ONFULL DROPOLD",
            "MAXINFLIGHT {maxinflight:0:C}",
            "GROUPINFLIGHT {groupinflight:0:C}",
            "RATE {rate+tokens} {rate+period:D} {rate+capacity}",
            "GROUPRATE {rate+tokens} {rate+period:D} {rate+capacity}",
            "DEDUP {dedup:0:D}",
            "MAXDEAD {maxdead:0:C}",
            "TTL {ttl:0:D}",
            "AGING {aging:0:D}",
        ],
    ),
    Form("RQ.SET q BACKOFF EXP {backoff+base:D} {backoff+max:D}", &[]),
    Form("RQ.PAUSE q", &["PUSH", "GROUP g", "UNTIL {until:0:I}"]),
    Form("RQ.PAUSE q", &["CLAIM"]),
    Form("RQ.RESUME q", &["GROUP g"]),
    Form("RQ.MOVE q dst READY", &["COUNT {count}"]),
    Form("SLUICE.CLOCK ADVANCE {ms:D}", &[]),
    Form("SLUICE.CLOCK SET {ms:0:I}", &[]),
];

/// A placeholder: the name in its error, and its bounds.
fn placeholder(word: &str) -> Option<(String, i64, i64)> {
    let inner = word.strip_prefix('{')?.strip_suffix('}')?;
    let parts: Vec<&str> = inner.split(':').collect();
    let bound = |text: &str| match text {
        "C" => 1_000_000_000_000,
        "B" => 999_999_999_999,
        "D" => 31_622_400_000,
        "I" => 253_402_300_799_999,
        "R" => i64::MAX,
        number => number.parse().expect("a bound"),
    };
    let (low, high) = match parts[..] {
        [_] => (1, bound("C")),
        [_, high] => (1, bound(high)),
        [_, low, high] => (bound(low), bound(high)),
        _ => panic!("{word}"),
    };
    Some((parts[0].replace('+', " "), low, high))
}

impl Form {
    fn words(&self, options: &[&str]) -> Vec<String> {
        let line = format!("{} {}", self.0.replace("$limits", LIMITS), options.join(" "));
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn name(&self) -> &'static str {
        self.0.split(' ').next().unwrap()
    }
}

/// The words with every placeholder at its lowest value.
fn filled(words: &[String]) -> Vec<Vec<u8>> {
    let fill = |word: &String| match placeholder(word) {
        Some((_, low, _)) => low.to_string().into_bytes(),
        None => word.clone().into_bytes(),
    };
    words.iter().map(fill).collect()
}

/// Keys of every family with something in them, and a few others; the clock stands.
fn prepare(s: &mut Stage) {
    for line in [
        "SLUICE.CLOCK SET 1900000000000",
        "TB.SET tb 10 1 1000",
        "TB.TAKE tb COST 3",
        "LB.SET lb 10 1 1000",
        "LB.TAKE lb COST 3",
        "SEM.SET sem 5",
        "SEM.ACQUIRE sem COUNT 2",
        "GATE.SET gate STAGE a TB 10 1 1000 STAGE b SEM 5",
        "GATE.PASS gate",
        "HOT.SET hot 10 1 1000",
        "HOT.TAKE hot s COST 3",
        "RQ.MPUSH q 5 a b c d e GROUP g",
        "RQ.PUSH q f DELAY 5000 ID delayed",
        "RQ.CLAIM q COUNT 2 CONSUMER c",
        "SET text x",
        "HSET hash f x",
    ] {
        s.run(line);
    }
}

fn digest(s: &mut Stage) -> String {
    s.text("DEBUG DIGEST")
}

fn shown(words: &[Vec<u8>]) -> String {
    words.iter().map(|w| w.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// The error that these words are answered with.
#[track_caller]
fn refused(s: &mut Stage, words: &[Vec<u8>]) -> String {
    match s.bytes(words) {
        Reply::Error(error) => error,
        other => panic!("{} was taken: {other}", shown(words)),
    }
}

/// Runs a test on the prepared keys, which must be as they were afterwards.
#[track_caller]
fn changes_nothing(test: impl Fn(&mut Stage)) {
    on_stage_alone(|s| {
        prepare(s);
        let before = digest(s);
        test(s);
        assert_eq!(digest(s), before, "a failed call has changed something");
        assert_eq!(s.waiting(), 0);
    });
}

// ---------------------------------------------------------------- every command

#[test]
fn every_command_but_the_internal_ones_has_a_form_here() {
    on_stage_alone(|s| {
        let Reply::Array(names) = s.run("COMMAND LIST FILTERBY MODULE sluice") else { panic!("a list") };
        for name in names {
            let Reply::Bytes(name) = name else { panic!("a name") };
            let name = String::from_utf8(name).unwrap().to_uppercase();
            let elsewhere = ["SLUICE.VERSION", "SLUICE.APPLY", "SLUICE.FENCE", "RQ.MCLAIM", "GATE.MPASS"];
            assert!(FORMS.iter().any(|f| f.name() == name) || elsewhere.contains(&name.as_str()), "{name}");
        }
    });
}

#[test]
fn the_forms_are_right() {
    on_stage_alone(|s| {
        for form in FORMS {
            s.run("FLUSHALL");
            prepare(s);
            let words = filled(&form.words(form.1));
            // A take may be refused by an error only where the test has no such hold.
            let reply = s.bytes(&words);
            let fine = !matches!(&reply, Reply::Error(e) if e != "ERR no such hold");
            assert!(fine, "{}: {reply}", shown(&words));
        }
    });
}

#[test]
fn a_wrong_number_of_words_is_an_error() {
    changes_nothing(|s| {
        for form in FORMS {
            let words = filled(&form.words(&[]));
            let arity = match s.run(&format!("COMMAND INFO {}", form.name())) {
                Reply::Array(all) => match &all[0] {
                    Reply::Array(fields) => fields[1].to_string().parse::<i64>().unwrap(),
                    other => panic!("{other}"),
                },
                other => panic!("{other}"),
            };
            let wrong = format!("ERR wrong number of arguments for '{}' command", form.name().to_lowercase());
            for count in 1..usize::try_from(arity.abs()).unwrap() {
                assert_eq!(refused(s, &words[..count]), wrong, "{} words of {}", count, form.0);
            }
            if arity > 0 {
                let more = [words, vec![b"more".to_vec()]].concat();
                assert_eq!(refused(s, &more), wrong);
            }
        }
    });
}

#[test]
fn a_number_that_is_none_or_out_of_range_is_an_error_that_names_it() {
    const NO_NUMBERS: &[&[u8]] = &[
        b"",
        b"-",
        b"-0",
        b"+1",
        b"01",
        b"00",
        b" 1",
        b"1 ",
        b"1.0",
        b"1e3",
        b"0x10",
        b"nan",
        b"one",
        b"1\0",
        b"\xff",
        b"\r\n",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"99999999999999999999999999999999999999999999",
    ];
    changes_nothing(|s| {
        for form in FORMS {
            // Each option by itself, as some exclude each other.
            let alone: Vec<Vec<&str>> =
                if form.1.is_empty() { vec![vec![]] } else { form.1.iter().map(|o| vec![*o]).collect() };
            for options in alone {
                let words = form.words(&options);
                for (i, word) in words.iter().enumerate() {
                    let Some((name, low, high)) = placeholder(word) else { continue };
                    let out = [low.checked_sub(1), high.checked_add(1), Some(i64::MIN)];
                    let out = out.into_iter().flatten().map(|n| n.to_string().into_bytes());
                    for bad in NO_NUMBERS.iter().map(|b| b.to_vec()).chain(out) {
                        let mut words = filled(&words);
                        words[i] = bad;
                        let wanted = format!("ERR {name} must be between {low} and {high}");
                        assert_eq!(refused(s, &words), wanted, "{}", shown(&words));
                    }
                }
            }
        }
    });
}

#[test]
fn unknown_repeated_and_unfinished_options_are_errors() {
    changes_nothing(|s| {
        for form in FORMS.iter().filter(|f| !f.1.is_empty()) {
            for option in form.1 {
                let once = filled(&form.words(&[option]));
                // Any letter case is fine, so a repetition in another one is one.
                let name = option.split(' ').next().unwrap();
                let again = option.replacen(name, &name.to_lowercase(), 1);
                let error = refused(s, &filled(&form.words(&[option, &again])));
                assert!(error.starts_with("ERR syntax error: "), "{option} twice: {error}");
                assert!(error.contains("twice") || error.contains("exclude"), "{option} twice: {error}");
                for bogus in ["BOGUS", "", "COST\0", "payload", "-1", "a b"] {
                    let mut words = once.clone();
                    words.push(bogus.as_bytes().to_vec());
                    let error = refused(s, &words);
                    let named =
                        format!("ERR syntax error: unknown option '{}', expected ", bogus.escape_debug());
                    assert!(error.replace("\\x00", "\\0").starts_with(&named), "{}: {error}", shown(&words));
                }
                let count = option.split(' ').count();
                for missing in 1..count {
                    let words = &once[..once.len() - missing];
                    let error = refused(s, words);
                    let ok = error.starts_with("ERR syntax error: ")
                        && (error.ends_with(" is missing") || error.ends_with(" given"))
                        || error.contains("must be");
                    assert!(ok, "{}: {error}", shown(words));
                }
            }
        }
    });
}

#[test]
fn wrong_words_are_named() {
    changes_nothing(|s| {
        for (line, error) in [
            ("TB.SET tb 1 1 1 LEVEL FOO", "ERR LEVEL must be KEEP, ADD, SCALE or FULL"),
            ("TB.HOLD tb 1 1 1 COST 1 TTL 1 ONEXPIRE x", "ERR ONEXPIRE must be KEEP or REFUND"),
            ("TB.TAKE tb ATMOST FORCE", "ERR syntax error: ATMOST, FORCE and BLOCK exclude each other"),
            ("TB.TAKE tb FORCE BLOCK 5", "ERR syntax error: ATMOST, FORCE and BLOCK exclude each other"),
            ("TB.SETTLE tb x 1", "ERR no such hold"),
            ("TB.SETTLE tb 99999999999999999999 1", "ERR no such hold"),
            ("TB.TAKE missing", "ERR no limits: give capacity tokens period, or TB.SET the key first"),
            (
                "TB.HOLD missing COST 1 TTL 1",
                "ERR no limits: give capacity tokens period, or TB.SET the key first",
            ),
            ("TB.TAKE tb 5", "ERR syntax error: tokens is missing"),
            ("TB.TAKE tb 5 5", "ERR syntax error: period is missing"),
            ("RQ.PUSH q m ONDUP x", "ERR ONDUP must be REJECT, REPLACE or KEEPLAST"),
            ("RQ.PUSH q m DELAY 1 AT 1", "ERR syntax error: DELAY and AT exclude each other"),
            ("RQ.MPUSH q 2 a b ID x", "ERR syntax error: unknown option 'ID', expected "),
            ("RQ.MPUSH q 0 a", "ERR n must be between 1 and 1000000000000"),
            ("RQ.MPUSH q 3 a b", "ERR syntax error: 3 payloads announced, 2 given"),
            ("RQ.MPUSH q 1000000000000 a", "ERR syntax error: 1000000000000 payloads announced, 1 given"),
            ("RQ.MPUSH q 9223372036854775807 a", "ERR n must be between 1 and 1000000000000"),
            ("RQ.MCLAIM 0 q", "ERR numkeys must be between 1 and 1000000000000"),
            ("RQ.MCLAIM -1 q", "ERR numkeys must be between 1 and 1000000000000"),
            ("RQ.MCLAIM x q", "ERR numkeys must be between 1 and 1000000000000"),
            ("RQ.MCLAIM 2 q", "ERR syntax error: 2 keys announced, 1 given"),
            ("RQ.MCLAIM 1000000000000 q", "ERR syntax error: 1000000000000 keys announced, 1 given"),
            ("RQ.NEXT q COUNT 5 NOACK", "ERR syntax error: RECEIPTS is missing"),
            ("RQ.NEXT q RECEIPTS 0 a@1", "ERR receipts must be between 1 and 1000000000000"),
            ("RQ.NEXT q RECEIPTS 2 a@1", "ERR syntax error: 2 receipts announced, 1 given"),
            (
                "RQ.NACK q RECEIPTS 1000000000000 a@1",
                "ERR syntax error: 1000000000000 receipts announced, 1 given",
            ),
            ("RQ.NACK q BACK NOCOUNT REASON r", "ERR syntax error: RECEIPTS is missing"),
            ("RQ.NACK q DEAD BACK RECEIPTS 1 a@1", "ERR syntax error: DEAD excludes DELAY, BACK and NOCOUNT"),
            ("RQ.NACK q RECEIPTS 1 a@1 RECEIPTS 1 a@1", "ERR syntax error: RECEIPTS is given twice"),
            ("RQ.REQUEUE q ALL STALE 5", "ERR syntax error: STALE, CONSUMER and ALL exclude each other"),
            ("RQ.REDRIVE q IDS 0 a", "ERR ids must be between 1 and 1000000000000"),
            ("RQ.REDRIVE q IDS 3 a b", "ERR syntax error: 3 ids announced, 2 given"),
            ("RQ.PURGE q INFLIGHT", "ERR syntax error: expected READY, DELAYED, DEAD or ALL"),
            ("RQ.LEN q LIVE", "ERR syntax error: expected READY, DELAYED, INFLIGHT or DEAD"),
            ("RQ.LEN q READY READY", "ERR syntax error: unknown option 'READY', expected no more arguments"),
            ("RQ.LIST q LIVE", "ERR syntax error: expected READY, DELAYED, INFLIGHT or DEAD"),
            ("RQ.LIST q READY CURSOR x", "ERR invalid cursor: give 0, or what the same RQ.LIST answered"),
            ("RQ.LIST q READY CURSOR 99999999999999999999999999", "ERR invalid cursor"),
            ("RQ.SET q ONFULL x", "ERR ONFULL must be REJECT or DROPOLD"),
            ("RQ.SET q BACKOFF x", "ERR BACKOFF must be NONE, FIXED ms or EXP base max"),
            ("RQ.SET q BACKOFF EXP 5 4", "ERR backoff base must not be above its max"),
            ("RQ.SET q RATE 1 1", "ERR syntax error: rate capacity is missing"),
            ("RQ.SET q NOSUCH 1", "ERR syntax error: unknown option 'NOSUCH', expected LEASE"),
            ("RQ.SET q MAXLEN 5 MAXDEAD 5 TTL 5 LEASE 0", "ERR lease must be between 1 and 31622400000"),
            ("RQ.PAUSE q PUSH CLAIM", "ERR syntax error: PUSH and CLAIM exclude each other"),
            ("RQ.MOVE q q READY", "ERR source and destination are the same key"),
            ("RQ.MOVE q dst DELAYED", "ERR syntax error: expected READY or DEAD"),
            ("GATE.SET gate STAGE a XX 1", "ERR a stage must be TB, LB or SEM"),
            ("GATE.SET gate STAGE a SEM 1 STAGE a SEM 1", "ERR a stage name is given twice"),
            ("GATE.SET gate STAGE a SEM 1 STAGE b SEM 1", "ERR a gate may have at most one SEM stage"),
            ("GATE.SET gate a TB 1 1 1", "ERR syntax error: unknown option 'a', expected STAGE"),
            ("GATE.PASS missing", "ERR no such gate"),
            ("GATE.MPASS 0 tb", "ERR numkeys must be between 1 and 1000000000000"),
            ("GATE.MPASS 9 tb", "ERR syntax error: 9 keys announced, 1 given"),
            ("GATE.MPASS 2 tb tb", "ERR a key is given twice"),
            ("GATE.MPASS 2 tb missing", "ERR no limits"),
            ("HOT.TAKE missing s", "ERR no such rule"),
            ("HOT.EXCEPT hot s DEL DEL", "ERR syntax error: expected capacity tokens period, or DEL"),
            ("HOT.EXCEPT hot s 1 1", "ERR syntax error: expected capacity tokens period, or DEL"),
            ("SLUICE.CLOCK", "unreached"),
            (
                "SLUICE.CLOCK STOP",
                "ERR syntax error: unknown option 'STOP', expected SET ms, ADVANCE ms or REAL",
            ),
            ("SLUICE.CLOCK SET", "ERR syntax error: ms is missing"),
            ("SLUICE.CLOCK SET 5 6", "ERR syntax error: unknown option '6', expected no more arguments"),
            ("SLUICE.CLOCK REAL 6", "ERR syntax error: unknown option '6', expected no more arguments"),
            ("SLUICE.APPLY q 0 x", "ERR only a master or a file"),
            ("SLUICE.APPLY q -2 x", "ERR expire must be between -1 and 253402300799999"),
            ("SLUICE.FENCE 0 1", "ERR last must be between 1 and 4611686018427387904"),
            ("SLUICE.FENCE 1 1", "ERR only a master or a file"),
        ] {
            if error == "unreached" {
                s.run(line);
                continue;
            }
            let told = s.error(line);
            assert!(told.starts_with(error), "{line}: {told}");
        }
        let stages: String = (0..17).map(|i| format!(" STAGE s{i} TB 1 1 1")).collect();
        assert_eq!(s.error(&format!("GATE.SET gate{stages}")), "ERR stages must be between 1 and 16");
    });
}

#[test]
fn a_key_of_another_type_is_wrongtype_once_the_arguments_are_right() {
    changes_nothing(|s| {
        const WRONG: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
        for form in FORMS.iter().filter(|f| !f.0.starts_with("SLUICE.")) {
            let template = form.words(&[]);
            let own = template[1].as_str();
            for other in ["text", "hash", "tb", "lb", "sem", "gate", "hot", "q"].iter().filter(|k| **k != own)
            {
                let mut words = filled(&template);
                words[1] = other.as_bytes().to_vec();
                let error = refused(s, &words);
                assert!(error.starts_with(WRONG), "{}: {error}", shown(&words));
                // Wrong arguments come first.
                if let Some(i) = template.iter().position(|w| placeholder(w).is_some()) {
                    words[i] = b"x".to_vec();
                    let error = refused(s, &words);
                    assert!(error.contains(" must be between "), "{}: {error}", shown(&words));
                }
            }
        }
        for line in [
            "RQ.MCLAIM 2 q text",
            "RQ.MCLAIM 3 free text q",
            "RQ.MOVE q text READY",
            "RQ.MOVE text q READY",
            "RQ.MOVE tb q READY",
            "GATE.MPASS 2 tb text",
            "GATE.MPASS 2 q tb",
            "GATE.MPASS 2 tb sem",
        ] {
            assert!(s.error(line).starts_with(WRONG), "{line}");
        }
        assert!(s.error("CL.THROTTLE text 1 1 1").contains("redis-cell"), "it says what to do");
    });
}

// ---------------------------------------------------------------- any bytes

const ODD: &[&[u8]] = &[
    b"\0",
    b"a\0b",
    b"\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\xff\xfe",
    b"\xc3\x28",
    b" ",
    b"%s%n",
    b"{}",
    b"'\"\\",
];

#[test]
fn keys_are_any_bytes() {
    on_stage_alone(|s| {
        for key in ODD.iter().chain([&&b""[..], &&[b'k'; 5000][..]]) {
            let word = |w: &'static str| w.as_bytes().to_vec();
            let mut call = |words: &[&'static str]| {
                let mut all: Vec<Vec<u8>> = words.iter().map(|w| word(w)).collect();
                all.insert(1, key.to_vec());
                s.bytes(&all).to_string()
            };
            assert_eq!(call(&["TB.SET", "5", "1", "1000"]), "\"OK\"");
            assert!(call(&["TB.TAKE"]).starts_with("[1, 5, 4, 0, "));
            assert_eq!(call(&["DEL"]), "1");
            assert_eq!(call(&["RQ.PUSH", "m"]), "\"1\"");
            assert!(call(&["RQ.CLAIM"]).contains("\"m\""));
            assert_eq!(call(&["DEL"]), "1");
        }
    });
}

#[test]
fn ids_groups_consumers_and_payloads_are_any_bytes() {
    on_stage_alone(|s| {
        let long = vec![0xff; 512];
        for odd in ODD.iter().copied().chain([&long[..], b"@", b"a@1", b"@@", b"1@2@3"]) {
            s.run("DEL q");
            let pushed = s.bytes(&[&b"RQ.PUSH"[..], b"q", odd, b"ID", odd, b"GROUP", odd]);
            assert_eq!(pushed, Reply::Bytes(odd.to_vec()));
            let claimed = s.bytes(&[&b"RQ.CLAIM"[..], b"q", b"GROUP", odd, b"CONSUMER", odd]);
            let Reply::Array(messages) = &claimed else { panic!("{claimed}") };
            let Reply::Array(fields) = &messages[0] else { panic!("{claimed}") };
            assert_eq!((&fields[0], &fields[3]), (&Reply::Bytes(odd.to_vec()), &Reply::Bytes(odd.to_vec())));
            let Reply::Bytes(receipt) = &fields[1] else { panic!("{claimed}") };
            assert!(receipt.starts_with(odd) && receipt[odd.len()] == b'@');
            // They are told the same by all that tell them, also after a reload.
            s.run("DEBUG RELOAD");
            let got = s.bytes(&[&b"RQ.GET"[..], b"q", odd]).to_string();
            let shown = Reply::Bytes(odd.to_vec()).to_string();
            for field in ["id", "payload", "group", "consumer"] {
                assert!(got.contains(&format!("\"{field}\", {shown}")), "{field}: {got}");
            }
            let nacked = s.bytes(&[&b"RQ.NACK"[..], b"q", b"REASON", odd, b"RECEIPTS", b"1", receipt]);
            assert_eq!(nacked.to_string(), "[1]");
            assert_eq!(s.bytes(&[&b"RQ.DEL"[..], b"q", odd]), Reply::Int(1));
        }
        // An empty payload is one.
        s.bytes(&["RQ.PUSH", "empty", ""]);
        s.bytes(&["RQ.MPUSH", "empty", "2", "", ""]);
        assert_eq!(payloads(&s.run("RQ.CLAIM empty COUNT 5")), ["", "", ""]);
        s.bytes(&["SEM.ACQUIRE", "sem", "1", "OWNER", ""]);
        for odd in ODD {
            s.run("DEL sem hot gate");
            s.bytes(&[&b"SEM.ACQUIRE"[..], b"sem", b"1", b"OWNER", odd]);
            let shown = Reply::Bytes(odd.to_vec()).to_string();
            assert!(s.shown("SEM.INFO sem HOLDERS").contains(&shown));
            s.run("HOT.SET hot 5 1 1000");
            s.bytes(&[&b"HOT.TAKE"[..], b"hot", odd]);
            assert!(s.shown("HOT.TOP hot").contains(&shown));
            s.bytes(&[&b"GATE.SET"[..], b"gate", b"STAGE", odd, b"SEM", b"1"]);
            assert!(s.shown("GATE.PASS gate").contains(&shown));
        }
    });
}

#[test]
fn names_are_one_to_512_bytes() {
    on_stage_alone(|s| {
        prepare(s);
        let before = digest(s);
        let (long, longest) = (vec![b'x'; 513], vec![b'x'; 512]);
        for (what, words) in [
            ("id", &["RQ.PUSH", "q", "m", "ID", "$"][..]),
            ("group", &["RQ.PUSH", "q", "m", "GROUP", "$"]),
            ("group", &["RQ.CLAIM", "q", "GROUP", "$"]),
            ("consumer", &["RQ.CLAIM", "q", "CONSUMER", "$"]),
            ("consumer", &["RQ.REQUEUE", "q", "CONSUMER", "$"]),
            ("group", &["RQ.PAUSE", "q", "GROUP", "$"]),
            ("group", &["RQ.LIST", "q", "READY", "GROUP", "$"]),
            ("subject", &["HOT.TAKE", "hot", "$"]),
            ("subject", &["HOT.EXCEPT", "hot", "$", "1", "1", "1"]),
            ("stage name", &["GATE.SET", "gate", "STAGE", "$", "SEM", "1"]),
        ] {
            for bad in [&b""[..], &long] {
                let words: Vec<Vec<u8>> = words
                    .iter()
                    .map(|w| if *w == "$" { bad.to_vec() } else { w.as_bytes().to_vec() })
                    .collect();
                assert_eq!(refused(s, &words), format!("ERR {what} must be 1 to 512 bytes"));
            }
        }
        let error = s.bytes(&[&b"SEM.ACQUIRE"[..], b"new", b"1", b"OWNER", &long]).to_string();
        assert_eq!(error, "(error) ERR owner must be 0 to 512 bytes");
        // Ids of any length may be asked for; there are none.
        assert_eq!(s.bytes(&[&b"RQ.GET"[..], b"q", &long]), Reply::Nil);
        assert_eq!(s.bytes(&[&b"RQ.GET"[..], b"q", b""]), Reply::Nil);
        assert_eq!(s.bytes(&[&b"RQ.DEL"[..], b"q", &long, b""]), Reply::Int(0));
        assert_eq!(digest(s), before);
        // The longest.
        let id = s.bytes(&[&b"RQ.PUSH"[..], b"q", b"m", b"ID", &longest]);
        assert_eq!(id, Reply::Bytes(longest.clone()));
        assert_eq!(s.bytes(&[&b"RQ.DEL"[..], b"q", &longest]), Reply::Int(1));
    });
}

#[test]
fn ids_that_look_like_the_queues_own_are_passed_over_by_it() {
    on_stage_alone(|s| {
        for id in ["1", "3", "007", " 5", "-1", "18446744073709551615", "18446744073709551616", "4294967296"]
        {
            assert_eq!(s.bytes(&["RQ.PUSH", "q", "m", "ID", id]), Reply::Bytes(id.into()));
        }
        for own in ["2", "4", "5", "6", "7"] {
            assert_eq!(s.shown("RQ.PUSH q m"), format!("\"{own}\""));
        }
        assert_eq!(s.shown("RQ.LEN q"), "13");
        assert_eq!(s.bytes(&["RQ.PUSH", "q", "m", "ID", "6"]), Reply::Nil, "it is taken");
    });
}

#[test]
fn a_malformed_receipt_is_an_error_and_nothing_is_done() {
    on_stage_alone(|s| {
        prepare(s);
        let good = receipt(&s.run("RQ.CLAIM q"));
        let before = digest(s);
        let long = [vec![b'x'; 513], b"@1".to_vec()].concat();
        let bad: Vec<&[u8]> = vec![
            b"",
            b"1",
            b"@",
            b"1@",
            b"@1",
            b"1@0",
            b"1@-1",
            b"1@+1",
            b"1@01",
            b"1@ 1",
            b"1@1 ",
            b"1@1.0",
            b"1@x",
            b"1@18446744073709551616",
            b"1@99999999999999999999999",
            b"1@1@",
            b"1@1\0",
            &long,
        ];
        for receipt in bad {
            for words in [
                &[&b"RQ.ACK"[..], b"q", good.as_bytes(), receipt][..],
                &[b"RQ.EXTEND", b"q", b"5000", good.as_bytes(), receipt],
                &[b"RQ.NACK", b"q", b"RECEIPTS", b"2", good.as_bytes(), receipt],
                &[b"RQ.NEXT", b"q", b"RECEIPTS", b"2", good.as_bytes(), receipt],
                // Also where there is no queue.
                &[b"RQ.ACK", b"missing", receipt],
            ] {
                let words: Vec<Vec<u8>> = words.iter().map(|w| w.to_vec()).collect();
                assert_eq!(
                    refused(s, &words),
                    "ERR invalid receipt: expected <id>@<claim>",
                    "{}",
                    shown(&words)
                );
            }
        }
        assert_eq!(digest(s), before);
        assert_eq!(numbers(&s.run(&format!("RQ.ACK q {good}"))), [1], "it holds all the same");
    });
}

#[test]
fn a_forged_or_foreign_receipt_does_nothing() {
    changes_nothing(|s| {
        // Its message is there (0), or there is none (-1).
        for (receipt, answer) in [
            ("1@1", 0),
            ("1@18446744073709551615", 0),
            ("3@1900000000000000", 0),
            ("delayed@1", 0),
            ("nobody@1900000000000001", -1),
            ("0@1", -1),
            ("01@1", -1),
        ] {
            assert_eq!(numbers(&s.run(&format!("RQ.ACK q {receipt}"))), [answer], "{receipt}");
            assert_eq!(numbers(&s.run(&format!("RQ.EXTEND q 5000 {receipt}"))), [answer], "{receipt}");
            assert_eq!(
                numbers(&s.run(&format!("RQ.NACK q DEAD RECEIPTS 1 {receipt}"))),
                [answer],
                "{receipt}"
            );
        }
        for line in ["SEM.RELEASE sem 1 9223372036854775807", "GATE.LEAVE gate 1 9223372036854775807"] {
            assert_eq!(numbers(&s.run(line)), [0, 0], "{line}");
        }
        // A receipt of another queue with a message of the same id.
        s.run("RQ.MPUSH other 5 a b c d e");
        let foreign = receipt(&s.run("RQ.CLAIM other"));
        assert!(foreign.starts_with("1@"));
        assert_eq!(numbers(&s.run(&format!("RQ.ACK q {foreign}"))), [0]);
        s.run("DEL other");
    });
}

// ---------------------------------------------------------------- words at random

/// A small generator of numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).unwrap()
    }

    fn of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    fn word(&mut self) -> Vec<u8> {
        const KEYS: &[&str] = &["tb", "lb", "sem", "gate", "hot", "q", "text", "missing", "other"];
        const NUMBERS: &[&str] = &[
            "0",
            "1",
            "2",
            "3",
            "5",
            "10",
            "100",
            "1000",
            "-1",
            "1000000000000",
            "1000000000001",
            "31622400000",
            "31622400001",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "+1",
            "",
        ];
        const KEYWORDS: &[&str] = &[
            "COST",
            "ATMOST",
            "FORCE",
            "BLOCK",
            "WARMUP",
            "LEVEL",
            "KEEP",
            "ADD",
            "SCALE",
            "FULL",
            "TTL",
            "ONEXPIRE",
            "REFUND",
            "MAXWAIT",
            "COUNT",
            "LEASE",
            "OWNER",
            "HOLDERS",
            "STAGE",
            "TB",
            "LB",
            "SEM",
            "MAXSUBJECTS",
            "DEL",
            "ID",
            "DELAY",
            "AT",
            "PRIORITY",
            "GROUP",
            "MAXDELIVERIES",
            "DEDUP",
            "ONDUP",
            "REJECT",
            "REPLACE",
            "KEEPLAST",
            "CONSUMER",
            "NOACK",
            "BACK",
            "NOCOUNT",
            "DEAD",
            "REASON",
            "RECEIPTS",
            "STALE",
            "ALL",
            "IDS",
            "READY",
            "DELAYED",
            "INFLIGHT",
            "CURSOR",
            "BACKOFF",
            "NONE",
            "FIXED",
            "EXP",
            "MAXLEN",
            "MAXBYTES",
            "ONFULL",
            "DROPOLD",
            "MAXINFLIGHT",
            "GROUPINFLIGHT",
            "RATE",
            "GROUPRATE",
            "MAXDEAD",
            "AGING",
            "PUSH",
            "CLAIM",
            "UNTIL",
        ];
        const OTHERS: &[&str] = &["a", "g", "1@1", "2@5", "x@", "s", "delayed", "\0", "\r\n", "zz zz"];
        match self.below(10) {
            0 | 1 => self.of(KEYS).into(),
            2..=4 => self.of(NUMBERS).into(),
            5..=7 => self.of(KEYWORDS).into(),
            8 => self.of(OTHERS).into(),
            _ => (0..self.below(9)).map(|_| self.below(256) as u8).collect(),
        }
    }

    /// A form with some of its options, some of the words replaced; or words at random.
    fn command(&mut self) -> Vec<Vec<u8>> {
        let form = &FORMS[self.below(FORMS.len() - 2)];
        let options: Vec<&str> = form.1.iter().copied().filter(|_| self.below(3) == 0).collect();
        let mut words = filled(&form.words(&options));
        if self.below(4) == 0 {
            words.truncate(2);
            (0..self.below(10)).for_each(|_| words.push(self.word()));
        }
        for _ in 0..self.below(3) {
            let i = 1 + self.below(words.len().max(2) - 1);
            match self.below(4) {
                0 if i < words.len() => drop(words.remove(i)),
                1 => words.insert(i.min(words.len()), self.word()),
                _ if i < words.len() => words[i] = self.word(),
                _ => {}
            }
        }
        words
    }
}

#[test]
fn words_at_random_end_no_server_and_failed_calls_change_nothing() {
    const CALLS: usize = 4000;
    // SLUICE_SEED gives others.
    let seed = std::env::var("SLUICE_SEED").map_or(1, |s| s.parse::<u64>().expect("SLUICE_SEED is a number"));
    on_stage_alone(|s| {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        prepare(s);
        let mut before = digest(s);
        let (mut taken, mut failed) = (0, 0);
        for call in 0..CALLS {
            if call % 500 == 499 {
                s.run("SLUICE.CLOCK ADVANCE 700");
                s.run("DEBUG RELOAD");
                before = digest(s);
            }
            let words = random.command();
            // In a script nothing blocks.
            let blocks = words.iter().any(|w| w.eq_ignore_ascii_case(b"BLOCK"));
            let reply = if blocks {
                let script = b"return redis.pcall(unpack(ARGV))".to_vec();
                s.bytes(&[vec![b"EVAL".to_vec(), script, b"0".to_vec()], words.clone()].concat())
            } else {
                s.bytes(&words)
            };
            let after = digest(s);
            if let Reply::Error(error) = &reply {
                failed += 1;
                assert_eq!(after, before, "seed {seed}, call {call}: {}: {error}", shown(&words));
                let code = error.split(' ').next().unwrap_or_default();
                let codes = ["ERR", "WRONGTYPE", "QFULL", "PAUSED"];
                assert!(codes.contains(&code), "seed {seed}, call {call}: {}: {error}", shown(&words));
                assert!(
                    !error.contains("internal error"),
                    "seed {seed}, call {call}: {}: {error}",
                    shown(&words)
                );
            } else {
                taken += 1;
            }
            before = after;
        }
        assert!(taken > CALLS / 10 && failed > CALLS / 10, "{taken} taken, {failed} failed: they say little");
    });
}
