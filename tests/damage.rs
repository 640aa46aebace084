//! Bytes that nobody vouches for: damaged `RESTORE` payloads and forged `SLUICE.APPLY` effects. The
//! server lives, another key is never touched, and what is accepted works as any key does.

use crate::common::workload::{
    Rng, Words, Workload, assert_no_panic, assert_same, held, keys, shown, torture,
};
use crate::common::{
    Engine, RawConnection, Reply, Server, T0, call, digest, error, eventually, info, int, on_every_engine,
    registered_commands, say, set_clock, text,
};
use redis::Value;

/// The checksum of dumps: CRC-64 with the Jones polynomial, reflected.
fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
    })
}

/// A dump: the value, two bytes of version, eight of checksum.
const CHECKSUM: usize = 8;
const FOOTER: usize = 2 + CHECKSUM;

/// The payload with the checksum it ought to have.
pub fn signed(mut payload: Vec<u8>) -> Vec<u8> {
    payload.truncate(payload.len() - CHECKSUM);
    let sum = crc64(&payload);
    payload.extend_from_slice(&sum.to_le_bytes());
    payload
}

/// Makes keys with something of everything in them, and gives their names.
fn rich_keys(server: &Server) -> Vec<&'static str> {
    let mut c = server.connect();
    set_clock(&mut c, T0);
    let there = registered_commands(&mut c);
    let mut raw = server.raw();
    for line in RICH.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        if there.iter().any(|name| name.eq_ignore_ascii_case(words[0])) {
            let reply = raw.call(&words).expect("a reply");
            assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply}");
        }
    }
    let all = ["tb:taken", "tb:pinned", "lb:taken", "lb:pinned", "rq:rich", "rq:plain", "sem", "gate", "hot"];
    let there = keys(&mut c);
    all.into_iter().filter(|key| there.iter().any(|k| k == key)).collect()
}

const RICH: &str = "
    TB.TAKE tb:taken 10 3 7000 COST 7
    TB.SET tb:pinned 100 7 30000 WARMUP 5000
    TB.TAKE tb:pinned COST 20
    TB.HOLD tb:pinned COST 3 TTL 60000 ONEXPIRE REFUND
    TB.HOLD tb:pinned COST 2 TTL 90000
    TB.BAN tb:pinned 5000
    LB.TAKE lb:taken 10 3 7000 COST 7
    LB.SET lb:pinned 200 500 1000
    LB.TAKE lb:pinned COST 3
    RQ.SET rq:rich LEASE 20000 MAXDELIVERIES 5 BACKOFF EXP 100 9000 MAXLEN 50 MAXBYTES 9000 ONFULL DROPOLD MAXINFLIGHT 9 GROUPINFLIGHT 3
    RQ.SET rq:rich RATE 50 1000 20 GROUPRATE 9 1000 9 MAXDEAD 5 TTL 900000 AGING 50
    RQ.PUSH rq:rich one ID a GROUP g PRIORITY 3
    RQ.PUSH rq:rich two ID b GROUP g
    RQ.PUSH rq:rich three GROUP h LEASE 5000 MAXDELIVERIES 2
    RQ.PUSH rq:rich four DELAY 40000
    RQ.PUSH rq:rich five ID e DEDUP 70000
    RQ.PUSH rq:rich six ID bad
    RQ.CLAIM rq:rich COUNT 2 CONSUMER c1
    RQ.CLAIM rq:rich COUNT 1 LEASE 3000 CONSUMER c2
    RQ.PUSH rq:rich follows ID a ONDUP KEEPLAST TTL 5000
    RQ.PUSH rq:rich late ID w DEDUP 8000
    RQ.DEL rq:rich w
    RQ.PAUSE rq:rich CLAIM GROUP z UNTIL 1900000500000
    RQ.PAUSE rq:rich PUSH UNTIL 1900000600000
    RQ.SET rq:plain MAXDELIVERIES 1 BACKOFF NONE
    RQ.PUSH rq:plain dies ID dead
    RQ.CLAIM rq:plain LEASE 1
    SLUICE.CLOCK ADVANCE 1
    RQ.PUSH rq:plain ready
    RQ.PUSH rq:plain again PRIORITY 9
    SEM.SET sem 5 LEASE 60000
    SEM.ACQUIRE sem COUNT 2 OWNER o
    SEM.ACQUIRE sem COUNT 1 LEASE 7000
    GATE.SET gate STAGE a TB 20 3 1000 WARMUP 500 STAGE b LB 30 7 500 STAGE c SEM 4 LEASE 60000
    GATE.PASS gate COST 2
    HOT.SET hot 10 3 7000 MAXSUBJECTS 9
    HOT.EXCEPT hot vip 100 1 10
    HOT.TAKE hot vip COST 5
    HOT.TAKE hot alice COST 5
    HOT.TAKE hot bob COST 10
    HOT.TAKE hot bob
";

/// What a key of that name is asked, whatever is in it.
fn probes(key: &str, name: &str) -> Vec<Words> {
    let lines: &[&str] = match key.split(':').next().expect("a name") {
        "tb" => &[
            "TB.INFO @",
            "TB.PEEK @ 10 1 1000 COST 2",
            "TB.TAKE @ 10 1 1000 COST 2 FORCE",
            "TB.HOLD @ 10 1 1000 COST 1 TTL 1000",
            "TB.REFUND @ 3",
            "TB.DRAIN @ 10 1 1000",
        ],
        "lb" => &["LB.INFO @", "LB.PEEK @ 10 1 1000 COST 2", "LB.TAKE @ 10 1 1000 COST 2", "LB.REFUND @ 1"],
        "rq" => &[
            "RQ.INFO @",
            "RQ.LIST @ READY COUNT 99",
            "RQ.LIST @ DELAYED",
            "RQ.LIST @ INFLIGHT",
            "RQ.LIST @ DEAD",
            "RQ.GET @ a",
            "RQ.PUSH @ p ID a ONDUP KEEPLAST",
            "RQ.PUSH @ p GROUP g PRIORITY 2",
            "RQ.CLAIM @ COUNT 5 LEASE 1000",
            "RQ.REQUEUE @ ALL COUNT 1",
            "RQ.REDRIVE @",
            "RQ.DEL @ a b 1",
            "RQ.SET @ TTL 1000 MAXDEAD 1",
        ],
        "sem" => &["SEM.INFO @ HOLDERS", "SEM.PEEK @ 9", "SEM.ACQUIRE @ 9 COUNT 2", "SEM.SET @ 7"],
        "gate" => &["GATE.INFO @", "GATE.PEEK @", "GATE.PASS @ COST 2"],
        _ => {
            &["HOT.INFO @", "HOT.TOP @", "HOT.PEEK @ vip", "HOT.TAKE @ carol COST 3", "HOT.EXCEPT @ vip DEL"]
        }
    };
    lines
        .iter()
        .map(|l| l.split(' ').map(|w| if w == "@" { name } else { w }.as_bytes().to_vec()).collect())
        .collect()
}

/// Fails for what no command may answer.
#[track_caller]
fn assert_sane(words: &[Vec<u8>], reply: &Reply, what: &str) {
    match reply {
        Reply::Error(e) => assert!(!e.contains("internal"), "{}: {e} ({what})", shown(words)),
        Reply::Array(items) if words[0].ends_with(b"INFO") => assert_conserved(items, what),
        _ => {}
    }
}

/// What went into a queue has come out or is there.
#[track_caller]
fn assert_conserved(fields: &[Reply], what: &str) {
    let of = |name: &str| {
        let pairs = fields.chunks_exact(2);
        let value =
            pairs.filter(|p| matches!(&p[0], Reply::Bytes(n) if n == name.as_bytes())).map(|p| &p[1]).next();
        if let Some(Reply::Int(n)) = value { Some(i128::from(*n)) } else { None }
    };
    let (Some(pushed), Some(moved_in)) = (of("total_pushed"), of("total_moved_in")) else { return };
    let gone = ["acked", "expired", "dropped", "deleted", "replaced", "moved_out"]
        .map(|n| of(&format!("total_{n}")).expect("a total"));
    let there = ["ready", "delayed", "inflight", "dead", "followers"].map(|n| of(n).expect("a count"));
    let (gone, there) = (gone.iter().sum::<i128>(), there.iter().sum::<i128>());
    assert_eq!(pushed + moved_in, gone + there, "messages are lost or invented: {what}");
}

/// Ways to damage `length` bytes from `first` on: each says what to do to them.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Xor(usize, u8),
    Cut(usize),
    Double(usize),
    Zero(usize),
}

impl Damage {
    fn all(length: usize) -> Vec<Self> {
        let masks: &[u8] =
            if torture() { &[1, 2, 4, 8, 16, 32, 64, 128, 255, 0x55] } else { &[1, 255, 0x44] };
        let flips = (0..length).flat_map(|at| masks.iter().map(move |mask| Self::Xor(at, *mask)));
        let cuts = (0..length).flat_map(|at| [Self::Cut(at), Self::Double(at), Self::Zero(at)]);
        flips.chain(cuts).collect()
    }

    fn to(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match self {
            Self::Xor(at, mask) => bytes[at] ^= mask,
            Self::Cut(at) => bytes.truncate(at),
            Self::Double(at) => bytes.insert(at, bytes[at]),
            Self::Zero(at) => bytes[at] = 0,
        }
        bytes
    }
}

/// Sends all, then reads all.
#[track_caller]
fn pipeline(c: &mut RawConnection, commands: &[Words]) -> Vec<Reply> {
    for command in commands {
        c.send(command).unwrap_or_else(|e| panic!("{}: {e}", shown(command)));
    }
    commands.iter().map(|w| c.read().unwrap_or_else(|e| panic!("{}: {e}", shown(w)))).collect()
}

fn words<W: AsRef<[u8]>>(all: &[W]) -> Words {
    all.iter().map(|w| w.as_ref().to_vec()).collect()
}

#[test]
fn damaged_payloads_are_refused_or_give_a_key_that_works() {
    assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    on_every_engine(|engine| {
        let server = Server::builder(engine).option("sanitize-dump-payload", "yes").start();
        let rich = rich_keys(&server);
        let mut c = server.connect();
        let mut raw = server.raw();
        let mut payloads = Vec::new();
        for key in rich {
            let Value::BulkString(payload) = call!(c, "DUMP", key) else { panic!("no dump of {key}") };
            // The control: untouched it is the same key, and our checksum is the server's.
            assert_eq!(signed(payload.clone()), payload, "{key}");
            let expires = int(call!(c, "PEXPIRETIME", key)).max(0);
            call!(c, "RESTORE", "copy", expires, payload.as_slice(), "ABSTTL");
            assert_eq!(digest_of(&mut c, "copy"), digest_of(&mut c, key), "{key}");
            call!(c, "DEL", "copy");
            let cut = &payload[..payload.len() - 1];
            assert!(error!(c, "RESTORE", "copy", 0, cut).starts_with("ERR DUMP payload"));
            payloads.push((key, payload));
        }
        // Time passes over what is restored: these are the same at any.
        call!(c, "FLUSHALL");
        call!(c, "TB.SET", "bystander", 10, 1, 1000);
        call!(c, "RQ.PUSH", "waiting", "payload");
        let before = digest(&mut c);
        let (mut refused, mut accepted) = (0, 0);
        for (key, payload) in &payloads {
            let (body, footer) = payload.split_at(payload.len() - FOOTER);
            for damage in Damage::all(body.len()) {
                let mut damaged = damage.to(body);
                if damaged == body {
                    continue;
                }
                damaged.extend_from_slice(footer);
                match restore(&mut raw, key, &signed(damaged), &format!("{damage:?} of {key} on {engine}")) {
                    true => accepted += 1,
                    false => refused += 1,
                }
            }
            assert_eq!(digest(&mut c), before, "no other key is touched by damaged payloads of {key}");
        }
        assert!(refused > 1000 && accepted > 10, "{refused} refused, {accepted} accepted");
        assert_no_panic(&server);
        // Nothing of what was restored is left, nor with the timer, and time goes on.
        call!(c, "FLUSHALL");
        call!(c, "SLUICE.CLOCK", "ADVANCE", 1_000_000);
        eventually("all that was restored to be freed", || {
            let fields = info(&mut c, "sluice");
            let mut left =
                fields.iter().filter(|(name, _)| name.ends_with("_keys") || name.ends_with("timer_objects"));
            left.all(|(_, n)| n == "0")
        });
    });
}

fn digest_of(c: &mut redis::Connection, key: &str) -> String {
    text(crate::common::array(call!(c, "DEBUG", "DIGEST-VALUE", key)).remove(0))
}

/// Restores a damaged payload; whether it was accepted. Uses the key and lets time pass over it,
/// then deletes it.
#[track_caller]
fn restore(c: &mut RawConnection, key: &str, payload: &[u8], what: &str) -> bool {
    let name = "damaged";
    let reply = pipeline(
        c,
        &[
            words(&[b"RESTORE".as_slice(), name.as_bytes(), b"31622400000", payload]),
            words(&["EXISTS", name]),
        ],
    );
    match &reply[..] {
        [Reply::Error(e), exists] => {
            assert_eq!(e, "ERR Bad data format", "{what}");
            assert_eq!(*exists, Reply::Int(0), "{what} left a key");
            return false;
        }
        [Reply::Bytes(ok), Reply::Int(1)] if ok == b"OK" => {}
        other => panic!("{what}: {other:?}"),
    }
    // As it came, it can be stored and loaded again, and is the same.
    let stored = pipeline(
        c,
        &[words(&["DUMP", name]), words(&["DEBUG", "DIGEST-VALUE", name]), words(&["COPY", name, "again"])],
    );
    let Reply::Bytes(dump) = &stored[0] else { panic!("{what}: DUMP answered {}", stored[0]) };
    let loaded = pipeline(
        c,
        &[
            words(&[b"RESTORE".as_slice(), b"loaded", b"31622400000", dump]),
            words(&["DEBUG", "DIGEST-VALUE", "loaded"]),
            words(&["DEBUG", "DIGEST-VALUE", "again"]),
        ],
    );
    assert_eq!(loaded[0], Reply::Bytes(b"OK".to_vec()), "{what}: what was restored cannot be restored again");
    assert_eq!((&loaded[1], &loaded[2]), (&stored[1], &stored[1]), "{what}: it changes by being stored");
    let mut asked = probes(key, name);
    asked.push(words(&["SLUICE.CLOCK", "ADVANCE", "100000"]));
    asked.extend(probes(key, name));
    asked.push(words(&["SLUICE.CLOCK", "ADVANCE", "10000000"]));
    asked.extend(probes(key, name));
    asked.push(words(&["MEMORY", "USAGE", name]));
    // What was accepted never leads to what is not: as it is by now it can be stored and loaded.
    asked.push(words(&["DUMP", name]));
    let dumped = asked.len() - 1;
    asked.push(words(&["DEL", name, "again", "loaded"]));
    asked.push(words(&["SLUICE.CLOCK", "SET", &(T0 + 1).to_string()]));
    let replies = pipeline(c, &asked);
    for (words, reply) in asked.iter().zip(&replies) {
        assert_sane(words, reply, what);
    }
    if let Reply::Bytes(dump) = &replies[dumped] {
        let again =
            [words(&[b"RESTORE".as_slice(), name.as_bytes(), b"31622400000", dump]), words(&["DEL", name])];
        assert_eq!(pipeline(c, &again)[0], Reply::Bytes(b"OK".to_vec()), "{what}: after use");
    }
    true
}

// ---------------------------------------------------------------- forged effects

/// The commands in the files of an AOF, in order.
pub fn aof_commands(server: &Server) -> Vec<Words> {
    let folder = server.dir().join("appendonlydir");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").flatten().map(|e| e.path()).collect();
    files.retain(|p| p.to_string_lossy().ends_with(".incr.aof"));
    files.sort();
    let bytes: Vec<u8> = files.iter().flat_map(|p| std::fs::read(p).expect("an AOF")).collect();
    let (mut at, mut commands) = (0, Vec::new());
    let number = |at: &mut usize| -> usize {
        let end = *at + bytes[*at..].windows(2).position(|w| w == b"\r\n").expect("a line");
        let number = std::str::from_utf8(&bytes[*at + 1..end]).expect("a number").parse().expect("a number");
        *at = end + 2;
        number
    };
    while at < bytes.len() {
        let count = number(&mut at);
        let mut command = Vec::with_capacity(count);
        for _ in 0..count {
            let length = number(&mut at);
            command.push(bytes[at..at + length].to_vec());
            at += length + 2;
        }
        commands.push(command);
    }
    commands
}

/// A real effect with something wrong with it.
fn forgeries(effect: &Words, others: &[Words], rng: &mut Rng) -> Vec<Words> {
    const HEAD: usize = 3;
    let mut all: Vec<Words> = Damage::all(effect[HEAD].len())
        .into_iter()
        .map(|damage| {
            let mut forged = effect.clone();
            forged[HEAD] = damage.to(&effect[HEAD]);
            forged
        })
        .collect();
    if !torture() {
        const SOME: usize = 12;
        while all.len() > SOME {
            let out = rng.below(all.len() as u64) as usize;
            all.swap_remove(out);
        }
    }
    let mut with = |change: &dyn Fn(&mut Words)| {
        let mut forged = effect.clone();
        change(&mut forged);
        all.push(forged);
    };
    // Payloads too few, too many, or others; the same change twice; another key's change after it.
    with(&|e| e.truncate(HEAD + 1));
    with(&|e| drop(e.pop().filter(|_| e.len() > HEAD + 1)));
    with(&|e| e.push(b"one more".to_vec()));
    with(&|e| e.insert(HEAD + 1, vec![0xff; 300]));
    with(&|e| e.extend_from_within(HEAD + 1..));
    with(&|e| {
        let again = e[HEAD].get(2..).unwrap_or_default().to_vec();
        e[HEAD].extend(again);
        e.extend_from_within(HEAD + 1..);
    });
    let other = &others[rng.below(others.len() as u64) as usize];
    with(&|e| {
        e[HEAD].extend(other[HEAD].get(2..).unwrap_or_default());
        e.extend_from_slice(&other[HEAD + 1..]);
    });
    with(&|e| e[2] = b"-1".to_vec());
    with(&|e| e[2] = b"1".to_vec());
    with(&|e| e[2] = b"253402300799999".to_vec());
    all
}

#[test]
fn forged_effects_are_refused_whole_or_leave_a_key_that_works() {
    on_every_engine(|engine| {
        let master =
            Server::builder(engine).option("appendonly", "yes").option("appendfsync", "always").start();
        let mut load = Workload::frozen(&master, 41).without_key_commands();
        load.play(&mut master.raw(), 500);
        let commands = aof_commands(&master);
        let is_effect = |c: &Words| c[0].eq_ignore_ascii_case(b"SLUICE.APPLY");
        // A list of changes of several keys is refused part by part, as an AOF that is piped would
        // be: here it is only played.
        let is_effect = |c: &Words| is_effect(c) && c[3].get(1) != Some(&0);
        let effects: Vec<Words> = commands.iter().filter(|c| is_effect(c)).cloned().collect();
        assert!(effects.len() > 200, "the load had {} effects", effects.len());

        let victim = Server::builder(engine).module_arg("apply-from-clients", "yes").start();
        set_clock(&mut victim.connect(), load.clock());
        let mut raw = victim.raw();
        let mut rng = Rng::new(42);
        let (mut refused, mut accepted) = (0, 0);
        for command in &commands {
            // All would take longer than unpinned keys live while the clock stands.
            if is_effect(command) && rng.percent(if torture() { 8 } else { 30 }) {
                for forged in forgeries(command, &effects, &mut rng) {
                    if forge(&mut raw, command, forged, engine) { accepted += 1 } else { refused += 1 }
                }
            }
            // The control: after all the forgeries beside it the true history is accepted, and ends
            // with the true state.
            let name = String::from_utf8_lossy(&command[0]).to_uppercase();
            if !["SELECT", "MULTI", "EXEC"].contains(&name.as_str()) {
                let reply = &pipeline(&mut raw, std::slice::from_ref(command))[0];
                assert!(!matches!(reply, Reply::Error(_)), "{}: {reply}", shown(command));
            }
        }
        call!(victim.connect(), "DEL", "forged");
        assert!(refused > 300 && accepted > 300, "{refused} refused, {accepted} accepted");
        assert_same("after the true history", &held(&master), &held(&victim));
        call!(victim.connect(), "SLUICE.CLOCK", "ADVANCE", 10_000_000);
        assert_no_panic(&victim);
        if torture() {
            say(&format!("forged effects on {engine}: {refused} refused, {accepted} accepted"));
        }
    });
}

/// Sends a forged effect to a copy of its key; whether it was accepted. A refused one has changed
/// nothing.
#[track_caller]
fn forge(c: &mut RawConnection, real: &Words, mut forged: Words, engine: &Engine) -> bool {
    let (key, name) = (&real[1], b"forged".to_vec());
    forged[1].clone_from(&name);
    let look = words(&[b"DEBUG".as_slice(), b"DIGEST-VALUE", &name]);
    let mut asked =
        vec![words(&[b"DEL".as_slice(), &name]), words(&[b"COPY".as_slice(), key, &name]), look.clone()];
    asked.extend([forged.clone(), look]);
    let probes = probes(&String::from_utf8_lossy(key), "forged");
    let first_probe = asked.len();
    asked.extend(probes);
    let replies = pipeline(c, &asked);
    let what = format!("{} on {engine}", shown(&forged));
    for (words, reply) in asked[first_probe..].iter().zip(&replies[first_probe..]) {
        assert_sane(words, reply, &what);
    }
    match &replies[3] {
        Reply::Error(e) => {
            assert!(e.starts_with("ERR ") || e.starts_with("WRONGTYPE"), "{what}: {e}");
            assert!(!e.contains("internal"), "{what}: {e}");
            assert_eq!(replies[2], replies[4], "{what}: refused with {e}, and yet it changed something");
            false
        }
        Reply::Bytes(ok) if ok == b"OK" => true,
        other => panic!("{what}: {other}"),
    }
}
