//! Names are hashed by a key that each process draws for itself: two servers that are told the same
//! say and keep the same.

use crate::common::Server;
use crate::common::stage::{Stage, on_stage_alone, wall};

/// Commands whose names lie in hash tables, some of them often enough that tables grow.
fn lines(now: i64) -> Vec<String> {
    let mut lines = vec![
        format!("SLUICE.CLOCK SET {}", now + 3_600_000),
        "HOT.SET h 10 1 60000 MAXSUBJECTS 150".into(),
        "RQ.SET q DEDUP 60000 GROUPRATE 5 1000 5".into(),
    ];
    for i in 0..400 {
        lines.push(format!("HOT.TAKE h user:{} COST {}", i * 37 % 211, 1 + i % 3));
        lines.push(format!("RQ.PUSH q m{i} ID job:{} GROUP tenant:{}", i % 300, i % 23));
        if i % 20 == 0 {
            lines.push(format!("HOT.EXCEPT h user:{i} 100 1 1000"));
            lines.push(format!("RQ.PAUSE q CLAIM GROUP tenant:{}", i % 7));
            lines.push(format!("RQ.CLAIM q COUNT 5 LEASE 1000 CONSUMER worker:{i}"));
        }
        if i % 100 == 99 {
            lines.push("SLUICE.CLOCK ADVANCE 700".into());
        }
    }
    lines.extend(
        ["HOT.SET h 8 1 60000 MAXSUBJECTS 50", "HOT.TOP h COUNT 512", "RQ.LIST q READY COUNT 1000"]
            .map(String::from),
    );
    for key in ["h", "q"] {
        lines.extend([format!("DUMP {key}"), format!("DEBUG DIGEST-VALUE {key}")]);
    }
    lines
}

#[test]
fn two_servers_that_are_told_the_same_say_and_keep_the_same() {
    on_stage_alone(|s| {
        let engine = s.server.engine();
        let mut other = Stage::on(Server::builder(engine).option("hz", "100").start());
        for line in lines(wall()) {
            let (here, there) = (s.shown(&line), other.shown(&line));
            assert_eq!(here, there, "{line}");
        }
    });
}
