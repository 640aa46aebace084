//! What the server tells of the module: its commands with arity, flags, keys, categories and docs;
//! INFO, settings, load options; and what ACL rules make of it.

use crate::common::stage::{Stage, on_stage_alone};
use crate::common::{
    Engine, Reply, Server, array, call, error, info, int, map, on_every_engine, registered_commands, text,
    try_call,
};
use redis::{Connection, Value};
use std::collections::BTreeSet;

/// Where a command's keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    None,
    /// The first argument.
    One,
    /// The first two.
    Two,
    /// As many as the first argument says.
    Counted,
}
use Keys::{Counted, None as NoKeys, One, Two};

/// Every command of the contract: name, arity, flags, keys.
const COMMANDS: &[(&str, i64, &str, Keys)] = &[
    ("sluice.version", 1, "readonly fast", NoKeys),
    ("sluice.clock", -1, "admin", NoKeys),
    ("sluice.apply", -4, "write denyoom admin", One),
    ("sluice.fence", 3, "write admin", NoKeys),
    ("cl.throttle", -5, "write denyoom fast", One),
    ("tb.take", -2, "write denyoom fast blocking", One),
    ("tb.peek", -2, "readonly fast", One),
    ("tb.refund", 3, "write fast", One),
    ("tb.set", -5, "write denyoom fast", One),
    ("tb.reset", 2, "write fast", One),
    ("tb.drain", -2, "write denyoom fast", One),
    ("tb.ban", 3, "write fast", One),
    ("tb.hold", -6, "write denyoom fast", One),
    ("tb.settle", 4, "write fast", One),
    ("tb.info", 2, "readonly fast", One),
    ("lb.take", -2, "write denyoom fast blocking", One),
    ("lb.peek", -2, "readonly fast", One),
    ("lb.refund", 3, "write fast", One),
    ("lb.set", 5, "write denyoom fast", One),
    ("lb.reset", 2, "write fast", One),
    ("lb.info", 2, "readonly fast", One),
    ("sem.acquire", -2, "write denyoom fast blocking", One),
    ("sem.release", -3, "write fast", One),
    ("sem.renew", -4, "write fast", One),
    ("sem.peek", -2, "readonly fast", One),
    ("sem.set", -3, "write denyoom fast", One),
    ("sem.info", -2, "readonly", One),
    ("sem.holders", -2, "readonly", One),
    ("gate.set", -6, "write denyoom", One),
    ("gate.pass", -2, "write denyoom fast blocking", One),
    ("gate.mpass", -3, "write denyoom", Counted),
    ("gate.leave", -3, "write fast", One),
    ("gate.peek", -2, "readonly fast", One),
    ("gate.info", 2, "readonly", One),
    ("hot.set", -5, "write", One),
    ("hot.except", -4, "write fast", One),
    ("hot.take", -3, "write denyoom fast", One),
    ("hot.peek", -3, "readonly fast", One),
    ("hot.top", -2, "readonly", One),
    ("hot.info", 2, "readonly", One),
    ("rq.push", -3, "write denyoom fast", One),
    ("rq.mpush", -4, "write denyoom", One),
    ("rq.claim", -2, "write fast blocking", One),
    ("rq.mclaim", -3, "write blocking", Counted),
    ("rq.ack", -3, "write fast", One),
    ("rq.nack", -5, "write fast", One),
    ("rq.extend", -4, "write fast", One),
    ("rq.next", -5, "write fast blocking", One),
    ("rq.requeue", -2, "write", One),
    ("rq.redrive", -2, "write", One),
    ("rq.del", -3, "write", One),
    ("rq.purge", -3, "write", One),
    ("rq.get", 3, "readonly fast", One),
    ("rq.list", -3, "readonly", One),
    ("rq.len", -2, "readonly fast", One),
    ("rq.info", 2, "readonly", One),
    ("rq.set", -4, "write", One),
    ("rq.pause", -2, "write fast", One),
    ("rq.resume", -2, "write fast", One),
    ("rq.move", -4, "write", Two),
];

/// Whether the server lets modules say which ACL categories their commands belong to.
fn has_categories(engine: &Engine) -> bool {
    engine.is_valkey() || engine.version() >= (7, 2)
}

/// Whether the server lets modules have ACL categories of their own.
fn has_own_category(engine: &Engine) -> bool {
    engine.is_valkey() || engine.version() >= (7, 4)
}

fn command_info(c: &mut Connection, name: &str) -> Vec<Value> {
    let mut all = array(call!(c, "COMMAND", "INFO", name));
    assert_eq!(all.len(), 1, "{name}");
    array(all.remove(0))
}

fn set(words: &str) -> BTreeSet<String> {
    words.split(' ').map(str::to_owned).collect()
}

fn texts(value: Value) -> BTreeSet<String> {
    array(value).into_iter().map(text).collect()
}

// ---------------------------------------------------------------- the commands

#[test]
fn exactly_the_commands_of_the_contract_are_registered() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut expected: Vec<&str> = COMMANDS.iter().map(|(name, ..)| *name).collect();
        expected.sort_unstable();
        assert_eq!(registered_commands(&mut server.connect()), expected);
    });
}

#[test]
fn every_command_has_its_arity_flags_and_keys() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        for (name, arity, flags, keys) in COMMANDS {
            let told = command_info(&mut c, name);
            assert_eq!(text(told[0].clone()), *name);
            assert_eq!(int(told[1].clone()), *arity, "{name}: arity");
            let mut wanted = set(flags);
            wanted.insert("module".into());
            if *keys == Counted {
                wanted.insert("movablekeys".into());
            }
            assert_eq!(texts(told[2].clone()), wanted, "{name}: flags");
            let range: Vec<i64> = told[3..6].iter().map(|n| int(n.clone())).collect();
            let wanted = match keys {
                NoKeys => [0, 0, 0],
                One => [1, 1, 1],
                Two => [1, 2, 1],
                // The first of them: by it a cluster finds the node.
                Counted => [2, 2, 1],
            };
            assert_eq!(range, wanted, "{name}: first key, last key, step");
            let specs = array(told[8].clone());
            let count = match keys {
                NoKeys => 0,
                One => 1,
                Two | Counted => 2,
            };
            assert_eq!(specs.len(), count, "{name}: key specs");
            for (i, spec) in specs.into_iter().enumerate() {
                let spec = map(spec);
                let readonly = flags.contains("readonly");
                let first = if readonly { "RO" } else { "RW" };
                let told = texts(spec["flags"].clone());
                assert!(told.contains(first), "{name}: {spec:?}");
                let find = map(spec["find_keys"].clone());
                let kind = if *keys == Counted && i == 0 { "keynum" } else { "range" };
                // What is there for the cluster only counts for nothing else.
                assert_eq!(told.contains("not_key"), *keys == Counted && i == 1, "{name}: {spec:?}");
                assert_eq!(text(find["type"].clone()), kind, "{name}");
            }
        }
    });
}

#[test]
fn the_keys_of_a_command_can_be_asked_for() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        for (line, keys) in [
            ("TB.TAKE k 1 1 1", "k"),
            ("RQ.PUSH k payload ID id", "k"),
            ("RQ.NEXT k RECEIPTS 1 a@1", "k"),
            ("RQ.MCLAIM 3 a b c COUNT 2", "a b c"),
            ("GATE.MPASS 2 a b COST 2", "a b"),
            ("RQ.MOVE src dst READY", "src dst"),
            ("SLUICE.APPLY k 0 effect", "k"),
        ] {
            let mut command = redis::cmd("COMMAND");
            command.arg("GETKEYS");
            command.arg(line.split(' ').collect::<Vec<_>>());
            use crate::common::Talk as _;
            let told: Vec<String> = array(c.run(&command)).into_iter().map(text).collect();
            assert_eq!(told.join(" "), keys, "{line}");
        }
        for (name, _, _, keys) in COMMANDS {
            if *keys == One {
                // Enough words for any arity.
                let words = ["k", "1", "1", "1", "1", "1"];
                let arity = COMMANDS.iter().find(|(n, ..)| n == name).unwrap().1;
                let count = usize::try_from(arity.abs() - 1).unwrap();
                let mut command = redis::cmd("COMMAND");
                command.arg("GETKEYS").arg(*name).arg(&words[..count]);
                use crate::common::Talk as _;
                assert_eq!(array(c.run(&command)).into_iter().map(text).collect::<Vec<_>>(), ["k"], "{name}");
            }
        }
        assert!(error!(c, "COMMAND", "GETKEYS", "SLUICE.VERSION").starts_with("ERR "));
        assert!(error!(c, "COMMAND", "GETKEYS", "RQ.MCLAIM", "9", "a").starts_with("ERR "));
    });
}

#[test]
fn every_command_is_documented_in_the_server() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        for (name, arity, _, keys) in COMMANDS {
            let docs = map(call!(c, "COMMAND", "DOCS", *name));
            let docs = map(docs.get(*name).unwrap_or_else(|| panic!("{name} has no docs")).clone());
            for field in ["summary", "since", "complexity", "group"] {
                let value = docs.get(field).cloned().unwrap_or_else(|| panic!("{name} has no {field}"));
                assert!(!text(value).is_empty(), "{name}: {field}");
            }
            assert!(text(docs["summary"].clone()).ends_with('.'), "{name}: a summary is a sentence");
            assert!(text(docs["complexity"].clone()).starts_with("O("), "{name}");
            assert_eq!(text(docs["since"].clone()).split('.').count(), 3, "{name}");
            // As many required words as the arity says, and its keys marked as such.
            let arguments = docs.get("arguments").cloned().map(array).unwrap_or_default();
            assert_eq!(arguments.is_empty(), *arity == 1, "{name}");
            let mut key_count = 0;
            for argument in &arguments {
                let argument = map(argument.clone());
                assert!(!text(argument["name"].clone()).is_empty(), "{name}");
                if text(argument["type"].clone()) == "key" {
                    assert_eq!(int(argument["key_spec_index"].clone()), key_count, "{name}");
                    key_count += 1;
                }
            }
            let wanted = match keys {
                NoKeys => 0,
                One | Counted => 1,
                Two => 2,
            };
            assert_eq!(key_count, wanted, "{name}: key arguments");
        }
    });
}

// ---------------------------------------------------------------- ACL

#[test]
fn commands_belong_to_the_categories_their_flags_say_and_to_one_of_their_own() {
    on_every_engine(|engine| {
        if !has_categories(engine) {
            return;
        }
        let server = Server::start(engine);
        let mut c = server.connect();
        for (name, _, flags, _) in COMMANDS {
            let told = texts(command_info(&mut c, name)[6].clone());
            let has = |category: &str| told.contains(&format!("@{category}"));
            let flagged = |flag: &str| flags.split(' ').any(|f| f == flag);
            assert_eq!(has("write"), flagged("write"), "{name}: {told:?}");
            assert_eq!(has("read"), flagged("readonly"), "{name}: {told:?}");
            assert_eq!(has("fast"), flagged("fast"), "{name}: {told:?}");
            assert_eq!(has("slow"), !flagged("fast"), "{name}: {told:?}");
            assert_eq!(has("blocking"), flagged("blocking"), "{name}: {told:?}");
            assert_eq!(has("admin") && has("dangerous"), flagged("admin"), "{name}: {told:?}");
            assert_eq!(has("sluice"), has_own_category(engine), "{name}: {told:?}");
        }
        if has_own_category(engine) {
            let listed = texts(call!(c, "ACL", "CAT", "sluice"));
            assert_eq!(listed, COMMANDS.iter().map(|(name, ..)| (*name).to_owned()).collect());
        }
    });
}

/// A connection as a user with these rules.
fn user(server: &Server, rules: &[&str]) -> Connection {
    let mut admin = server.connect();
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("worker").arg("reset").arg("on").arg("nopass").arg(rules);
    use crate::common::Talk as _;
    admin.run(&command);
    let mut c = server.connect();
    call!(c, "AUTH", "worker", "any");
    c
}

#[test]
fn a_user_of_some_keys_is_refused_the_others() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = user(&server, &["+@all", "~q:*"]);
        call!(c, "RQ.PUSH", "q:a", "m");
        call!(c, "RQ.CLAIM", "q:a");
        call!(c, "TB.TAKE", "q:tb", 1, 1, 1000);
        for line in [
            "RQ.PUSH other m",
            "RQ.LEN other",
            "RQ.CLAIM other BLOCK 0",
            "RQ.MCLAIM 2 q:a other",
            "RQ.MCLAIM 2 other q:a",
            "RQ.MOVE q:a other READY",
            "RQ.MOVE other q:a READY",
            "TB.PEEK other 1 1 1",
            "LB.TAKE other 1 1 1",
            "SEM.ACQUIRE other 1",
            "GATE.MPASS 2 q:tb other",
            "HOT.INFO other",
            "CL.THROTTLE other 1 1 1",
            "SLUICE.APPLY other 0 x",
        ] {
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            command.arg(words.collect::<Vec<_>>());
            use crate::common::Talk as _;
            let refusal = c.run_to_error(&command);
            assert!(refusal.starts_with("NOPERM"), "{line}: {refusal}");
        }
        // Each key of several, wherever it stands.
        let mut admin = server.connect();
        for (line, allowed) in [
            ("RQ.MCLAIM 3 q:a q:b q:c", true),
            ("RQ.MCLAIM 3 q:a q:b other", false),
            ("RQ.MCLAIM 3 q:a other q:c", false),
            ("RQ.MCLAIM 3 other q:b q:c", false),
            ("GATE.MPASS 3 q:a q:b q:c COST 2", true),
            ("GATE.MPASS 3 q:a q:b other COST 2", false),
        ] {
            let mut dry = redis::cmd("ACL");
            dry.arg("DRYRUN").arg("worker").arg(line.split(' ').collect::<Vec<_>>());
            use crate::common::Talk as _;
            let told = text(admin.run(&dry));
            assert_eq!(told == "OK", allowed, "{line}: {told}");
        }
        // A user that may only read a key.
        let mut c = user(&server, &["+@all", "%R~q:*"]);
        assert_eq!(call!(c, "RQ.LEN", "q:a"), Value::Int(1));
        assert!(error!(c, "RQ.PUSH", "q:a", "m").starts_with("NOPERM"));
        assert!(error!(c, "TB.TAKE", "q:tb", 1, 1, 1000).starts_with("NOPERM"));
        assert!(error!(c, "RQ.MCLAIM", 2, "q:a", "q:b").starts_with("NOPERM"));
    });
}

#[test]
fn a_user_of_some_categories_is_refused_the_others() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        call!(server.connect(), "TB.SET", "tb", 1, 1, 1000);
        if has_categories(engine) {
            let mut c = user(&server, &["+@read", "~*"]);
            call!(c, "TB.PEEK", "tb");
            call!(c, "RQ.LEN", "q");
            for refusal in
                [error!(c, "TB.TAKE", "tb"), error!(c, "RQ.CLAIM", "q"), error!(c, "TB.RESET", "tb")]
            {
                assert!(refusal.starts_with("NOPERM"), "{refusal}");
            }
            let mut c = user(&server, &["+@all", "-@dangerous", "~*"]);
            call!(c, "TB.TAKE", "tb");
            assert!(error!(c, "SLUICE.APPLY", "tb", 0, "x").starts_with("NOPERM"));
            assert!(error!(c, "SLUICE.CLOCK").starts_with("NOPERM"));
        }
        if has_own_category(engine) {
            let mut c = user(&server, &["+@sluice", "~*"]);
            call!(c, "RQ.PUSH", "q", "m");
            assert!(error!(c, "GET", "x").starts_with("NOPERM"));
        }
        // By name it works everywhere.
        let mut c = user(&server, &["+tb.take", "~*"]);
        call!(c, "TB.TAKE", "tb");
        assert!(error!(c, "TB.RESET", "tb").starts_with("NOPERM"));
    });
}

// ---------------------------------------------------------------- INFO, settings, loading

#[test]
fn the_version_is_that_of_the_package() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        let version = env!("CARGO_PKG_VERSION");
        // The package the tests are built with is the module's own.
        if env!("CARGO_PKG_NAME") == "sluice" {
            assert_eq!(text(call!(c, "SLUICE.VERSION")), version);
        }
        assert_eq!(text(call!(c, "SLUICE.VERSION")), info(&mut c, "sluice")["sluice_version"]);
        assert_eq!(
            error!(c, "SLUICE.VERSION", 1),
            "ERR wrong number of arguments for 'sluice.version' command"
        );
    });
}

#[test]
fn info_counts_keys_bytes_decisions_events_and_waiters() {
    on_stage_alone(|s| {
        let text = s.text("INFO sluice");
        let sections: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("# ")).collect();
        assert_eq!(sections, ["sluice_module", "sluice_memory", "sluice_decisions", "sluice_events"]);
        for family in ["tb", "lb", "sem", "gate", "hot", "rq"] {
            assert_eq!((s.field(&format!("{family}_keys")), s.field(&format!("{family}_bytes"))), (0, 0));
        }
        s.run("TB.TAKE tb 1 1 600000");
        s.run("TB.TAKE tb 1 1 600000");
        s.run("CL.THROTTLE cl 0 1 60");
        s.run("LB.TAKE lb 1 1 600000");
        s.run("LB.TAKE lb 1 1 600000");
        s.run("SEM.ACQUIRE sem 1");
        s.run("SEM.ACQUIRE sem 1");
        s.run("GATE.SET gate STAGE a TB 1 1 600000");
        s.run("GATE.PASS gate");
        s.run("GATE.PASS gate");
        s.run("HOT.SET hot 1 1 600000");
        s.run("HOT.TAKE hot s");
        s.run("HOT.TAKE hot s");
        for (family, granted) in [("tb", 2), ("lb", 1), ("sem", 1), ("gate", 1), ("hot", 1)] {
            let decisions = (s.field(&format!("{family}_granted")), s.field(&format!("{family}_refused")));
            assert_eq!(decisions, (granted, 1), "{family}");
        }
        s.run("RQ.MPUSH q 3 a b c");
        s.run("RQ.CLAIM q COUNT 2");
        let events: Vec<i64> =
            ["rq_push", "rq_claim", "rq_ack", "rq_timeout", "sem_acquire"].map(|e| s.field(e)).to_vec();
        assert_eq!(events, [3, 2, 0, 0, 1]);
        for family in ["lb", "sem", "gate", "hot", "rq"] {
            assert_eq!(s.field(&format!("{family}_keys")), 1, "{family}");
            assert!(s.field(&format!("{family}_bytes")) > 0, "{family}");
        }
        assert_eq!(s.field("tb_keys"), 2);

        // One who waited counts when it is told.
        let mut client = s.waiter("TB.TAKE tb 1 1 600000 BLOCK 6000000");
        assert_eq!((s.waiting(), s.field("tb_granted")), (1, 2));
        s.run("TB.RESET tb");
        client.told();
        assert_eq!((s.waiting(), s.field("tb_granted")), (0, 3));
        let mut client = s.asker("SEM.ACQUIRE sem 1 BLOCK 20");
        client.told();
        assert_eq!(s.field("sem_refused"), 2);

        s.run("FLUSHALL SYNC");
        for family in ["tb", "lb", "sem", "gate", "hot", "rq"] {
            assert_eq!(
                (s.field(&format!("{family}_keys")), s.field(&format!("{family}_bytes"))),
                (0, 0),
                "{family}"
            );
        }
        assert_eq!((s.field("clock_frozen"), s.field("clock_steps_back")), (0, 0));
        s.run("SLUICE.CLOCK SET 1900000000000");
        assert_eq!(s.field("clock_frozen"), 1);
    });
}

#[test]
fn settings_are_told_and_those_that_can_be_changed_are() {
    on_stage_alone(|s| {
        let all: BTreeSet<String> = {
            let mut c = s.server.connect();
            map(call!(c, "CONFIG", "GET", "sluice.*"))
                .into_iter()
                .map(|(k, v)| format!("{k}={}", text(v)))
                .collect()
        };
        let expected = [
            "sluice.apply-from-clients=no",
            "sluice.cl-throttle=yes",
            "sluice.debug-clock=yes",
            "sluice.due-per-command=5000",
            "sluice.keep-numbers=yes",
            "sluice.max-payload=536870912",
            "sluice.max-reply-bytes=33554432",
            "sluice.tick-budget-us=1000",
        ];
        assert_eq!(all, expected.iter().map(|s| (*s).to_owned()).collect());
        s.run("CONFIG SET sluice.max-payload 3 sluice.tick-budget-us 200");
        assert_eq!(s.error("RQ.PUSH q 1234"), "ERR payload must be at most 3 bytes (sluice.max-payload)");
        s.run("RQ.PUSH q 123");
        s.run("CONFIG SET sluice.apply-from-clients yes sluice.keep-numbers no");
        for (line, what) in [
            ("CONFIG SET sluice.max-payload 0", "between 1 and"),
            ("CONFIG SET sluice.tick-budget-us 49", "between 50 and"),
            ("CONFIG SET sluice.due-per-command 0", "between 1 and"),
            ("CONFIG SET sluice.max-reply-bytes 0", "between 1 and"),
            ("CONFIG SET sluice.tick-budget-us x", "couldn't be parsed"),
            ("CONFIG SET sluice.cl-throttle no", "immutable"),
            ("CONFIG SET sluice.debug-clock no", "immutable"),
        ] {
            let error = s.error(line);
            assert!(error.contains(what), "{line}: {error}");
        }
    });
}

#[test]
fn without_its_load_options_the_test_clock_and_cl_throttle_are_unknown() {
    on_every_engine(|engine| {
        let server = Server::builder(engine).module_defaults().start();
        let mut c = server.connect();
        for refusal in [error!(c, "SLUICE.CLOCK"), error!(c, "CL.THROTTLE", "k", 1, 1, 1)] {
            assert!(refusal.starts_with("ERR unknown command"), "{refusal}");
        }
        let commands = registered_commands(&mut c);
        assert_eq!(commands.len(), COMMANDS.len() - 2);
        assert_eq!(
            text(map(call!(c, "CONFIG", "GET", "sluice.debug-clock"))["sluice.debug-clock"].clone()),
            "no"
        );
    });
}

#[test]
fn settings_may_stand_in_the_configuration_file() {
    on_every_engine(|engine| {
        let server = Server::builder(engine)
            .option("sluice.max-payload", "5")
            .option("sluice.tick-budget-us", "300")
            .start();
        let mut c = server.connect();
        let told = map(call!(c, "CONFIG", "GET", "sluice.*"));
        assert_eq!(text(told["sluice.max-payload"].clone()), "5");
        assert_eq!(text(told["sluice.tick-budget-us"].clone()), "300");
    });
}

#[test]
fn a_wrong_load_option_keeps_the_module_out_and_says_why() {
    on_every_engine(|engine| {
        for (name, value, why) in [
            ("cl-throttle", "maybe", "load option cl-throttle must be yes or no"),
            ("debug-clock", "1", "load option debug-clock must be yes or no"),
            ("max-payload", "0", "load option max-payload must be between 1 and 536870912"),
            ("max-payload", "1e3", "load option max-payload must be between 1 and 536870912"),
            ("tick-budget-us", "49", "load option tick-budget-us must be between 50 and 1000000"),
            (
                "no-such",
                "yes",
                "unknown load option no-such: expected cl-throttle, debug-clock, apply-from-clients, keep-numbers, max-payload, tick-budget-us, due-per-command or max-reply-bytes",
            ),
            ("tick-budget-us", "", "load option tick-budget-us has no value"),
        ] {
            let Err(log) = Server::builder(engine).module_defaults().module_arg(name, value).try_start()
            else {
                panic!("{name} {value:?} was taken");
            };
            assert!(log.contains(&format!("sluice was not loaded: {why}")), "{name} {value:?}: {log}");
        }
        // Case does not matter.
        let server = Server::builder(engine).module_defaults().module_arg("CL-Throttle", "YES").start();
        call!(server.connect(), "CL.THROTTLE", "k", 1, 1, 1);
    });
}

#[test]
fn the_module_can_be_loaded_into_a_running_server_once_and_not_unloaded() {
    on_every_engine(|engine| {
        let mut server = Server::builder(engine).without_module().start();
        let mut c = server.connect();
        assert!(error!(c, "TB.TAKE", "k", 1, 1, 1).starts_with("ERR unknown command"));
        let path = crate::common::module_path().to_str().expect("a path of text");
        assert!(try_call!(c, "MODULE", "LOAD", path, "no-such", "yes").is_err());
        call!(c, "MODULE", "LOAD", path, "debug-clock", "yes");
        call!(c, "TB.TAKE", "k", 1, 1, 600_000);
        assert!(try_call!(c, "MODULE", "LOAD", path).is_err(), "it is there already");
        // The server refuses as long as the types of the module are known to it.
        let refusal = error!(c, "MODULE", "UNLOAD", "sluice");
        assert!(refusal.starts_with("ERR Error unloading module"), "{refusal}");
        assert!(server.is_alive());
        assert_eq!(int(array(call!(c, "TB.TAKE", "k", 1, 1, 600_000))[0].clone()), 0);
        drop(Stage::on(server));
    });
}

#[test]
fn who_may_only_write_a_key_may_use_what_tells_nothing_of_it() {
    // Commands that write and tell something of the value; all other writers tell what came of
    // their own arguments at most.
    const TELLING: &[&str] = &[
        "cl.throttle",
        "tb.take",
        "tb.refund",
        "tb.drain",
        "tb.hold",
        "tb.settle",
        "lb.take",
        "lb.refund",
        "sem.acquire",
        "gate.pass",
        "gate.mpass",
        "hot.take",
        "rq.claim",
        "rq.mclaim",
        "rq.next",
        "rq.move",
        "sluice.apply",
    ];
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        call!(c, "ACL", "SETUSER", "writer", "on", "nopass", "%W~*", "+@all");
        call!(c, "ACL", "SETUSER", "reader", "on", "nopass", "%R~*", "+@all");
        for (name, arity, flags, _) in COMMANDS.iter().filter(|(_, _, _, keys)| *keys != NoKeys) {
            let mut arguments: Vec<&str> = match *name {
                "rq.mclaim" | "gate.mpass" => vec!["1", "k"],
                "rq.move" => vec!["k", "l"],
                _ => vec!["k"],
            };
            // As many as it wants at least; of what they say only the keys are looked at.
            arguments.resize(arguments.len().max(arity.unsigned_abs() as usize - 1), "1");
            let mut may = |user: &str| {
                let mut words = vec!["ACL", "DRYRUN", user, name];
                words.extend(&arguments);
                let mut command = redis::cmd(words[0]);
                command.arg(&words[1..]);
                match command.query::<redis::Value>(&mut c) {
                    Ok(told) => text(told) == "OK",
                    Err(e) => panic!("{name}: {e}"),
                }
            };
            let reads = flags.contains("readonly") || TELLING.contains(name);
            assert_eq!(may("writer"), !reads, "{name}: who may write");
            assert_eq!(may("reader"), flags.contains("readonly"), "{name}: who may read");
        }
        // And not only by what is declared.
        call!(c, "RQ.PUSH", "q", "m");
        call!(c, "TB.SET", "tb", 1, 1, 1000);
        let mut w = server.connect();
        call!(w, "AUTH", "writer", "any");
        call!(w, "RQ.SET", "q", "MAXLEN", 5);
        call!(w, "RQ.PAUSE", "q");
        call!(w, "RQ.RESUME", "q");
        call!(w, "RQ.PUSH", "q", "m");
        call!(w, "RQ.DEL", "q", "1");
        call!(w, "RQ.PURGE", "q", "ALL");
        call!(w, "TB.SET", "tb", 2, 1, 1000);
        assert!(error!(w, "TB.TAKE", "tb").starts_with("NOPERM"));
        assert!(error!(w, "RQ.CLAIM", "q").starts_with("NOPERM"));
    });
}

#[test]
fn holders_are_told_page_by_page_whatever_changes_in_between() {
    on_stage_alone(|s| {
        assert_eq!(s.shown("SEM.HOLDERS k"), "[\"0\", []]");
        let receipts: Vec<String> = (0..25)
            .map(|i| s.shown(&format!("SEM.ACQUIRE k 100 OWNER o{} LEASE 600000", i % 2)))
            .map(|told| told.trim_end_matches(']').rsplit(' ').next().expect("a receipt").to_owned())
            .collect();
        let (mut cursor, mut seen, mut pages) = ("0".to_owned(), Vec::new(), 0);
        loop {
            let Reply::Array(page) = s.run(&format!("SEM.HOLDERS k CURSOR {cursor}")) else {
                panic!("a page")
            };
            let [Reply::Bytes(next), Reply::Array(holders)] = page.as_slice() else { panic!("{page:?}") };
            for holder in holders {
                let Reply::Array(fields) = holder else { panic!("{holder}") };
                assert_eq!(fields[1], Reply::Int(1));
                seen.push(fields[0].to_string());
            }
            pages += 1;
            cursor = String::from_utf8_lossy(next).into_owned();
            if cursor == "0" {
                break;
            }
            // The last that was told goes, and one comes, above all.
            if pages == 1 {
                s.run(&format!("SEM.RELEASE k {cursor}"));
                s.run("SEM.ACQUIRE k 100 OWNER late LEASE 600000");
            }
        }
        assert_eq!((pages, seen.len(), &seen[..25]), (3, 26, &receipts[..]));
        let odd = s.shown("SEM.HOLDERS k OWNER o1 COUNT 10000");
        assert_eq!(odd.matches("\"o1\"").count(), 11);
        s.run("SEM.ACQUIRE k 100");
        assert!(s.shown(&format!("SEM.HOLDERS k CURSOR {}", seen[25])).contains(", 1, nil, "));
        for (line, word) in [
            ("SEM.HOLDERS k COUNT 0", "count"),
            ("SEM.HOLDERS k COUNT 10001", "count"),
            ("SEM.HOLDERS k CURSOR x", "cursor"),
            ("SEM.HOLDERS k CURSOR 0 CURSOR 0", "CURSOR"),
        ] {
            assert!(s.error(line).contains(word), "{line}");
        }
    });
}
