//! The layered limit of a sale, as one line: a token bucket of 1500 at 1000/s before a leaky bucket
//! of 200 at 500/s.
//!
//! 3,000 requests a second are offered for ten seconds of the test clock. What leaves must be 500 a
//! second, evenly spaced, and the first layer must never be charged for what the second refused.

use crate::common::{Server, T0, array, call, int, on_every_engine, set_clock};

#[test]
fn a_sale_lets_out_an_even_flow_and_charges_no_refused_request() {
    const SECONDS: i64 = 10;
    /// Requests come in handfuls of 30 every 10 ms.
    const STEP_MS: i64 = 10;
    const HANDFUL: usize = 30;
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        set_clock(&mut c, T0);
        call!(
            c, "GATE.SET", "sale", "STAGE", "burst", "TB", 1500, 1000, 1000, "STAGE", "pace", "LB", 200, 500,
            1000
        );
        let mut leaves = Vec::new();
        for at in (0..SECONDS * 1_000).step_by(STEP_MS as usize) {
            set_clock(&mut c, T0 + at);
            for _ in 0..HANDFUL {
                let reply = array(call!(c, "GATE.PASS", "sale"));
                if int(reply[0].clone()) > 0 {
                    leaves.push(at + int(reply[1].clone()));
                }
            }
        }
        let gaps = leaves.windows(2).map(|w| w[1] - w[0]);
        assert!(gaps.clone().all(|gap| gap >= 2), "two leave closer than 2 ms");
        // Full seconds of the steady flow, the first 200 places having been given at once.
        for second in 1..SECONDS {
            let left = leaves.iter().filter(|t| **t / 1_000 == second).count() as i64;
            assert!((499..=501).contains(&left), "{left} left in second {second}");
        }
        // The bucket gained at least as much as was let out: it is full, so nothing refused was
        // ever charged to it.
        let peek = array(call!(c, "GATE.PEEK", "sale"));
        let stages = array(peek[5].clone());
        let burst: Vec<i64> = array(stages[0].clone()).into_iter().skip(1).map(int).collect();
        let charged_by_the_last_handful = 1_500 - burst[1];
        assert!(
            charged_by_the_last_handful <= 6,
            "the first layer was charged for what the second refused: {burst:?}"
        );
    });
}
