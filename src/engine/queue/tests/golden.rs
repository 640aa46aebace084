//! Golden bytes of a queue's changes: of each that is carried, and of each part that has several
//! forms. What is said in `engine/tests/golden.rs` holds.

use crate::engine::bucket::Limits;
use crate::engine::collections::slab::NONE;
use crate::engine::queue::config::{Backoff, Config, OnFull, Totals};
use crate::engine::queue::effect::{After, Cause, Claim, Entry, Header, Mode, Push, Scope, Step};
use crate::engine::queue::effect::{LaneState, Record};
use crate::engine::queue::message::{IdRef, Own, Stage};
use crate::engine::queue::tokens::Tokens;
use crate::engine::queue::wire::{ClaimedWire, Who, Wire};
use crate::engine::tests::golden::golden;

const NOW: i64 = 1_900_000_000_000_000;
const NUMBER: u64 = 1_900_000_000_000_000;
const ENTRY: Entry = Entry { at: NOW, delayed: true, seq: 7, turn: Some(8) };
const OWN: Own = Own { ttl: 1, lease: 2, max_deliveries: Some(3), ttl_base: 4 };

fn config() -> Config {
    let limits = Limits::new(10, 1, 1000);
    Config {
        rate: limits,
        group_rate: limits,
        backoff: Backoff::Exp { base: 5, max: 9 },
        on_full: OnFull::DropOld,
        ..Config::default()
    }
}

fn record() -> Record<'static> {
    Record {
        stage: Stage::InFlight { claim: NUMBER, claimed_at: NOW, deadline: NOW + 5 },
        priority: 2,
        group: Some(b"g".into()),
        place: (NOW, 7),
        pushed_at: NOW,
        own: Some(OWN),
        counters: [3, 2, 1],
        consumer: Some(b"me".into()),
        reason: Some(b"why".into()),
        owns_window: true,
        turn: Some(8),
    }
}

#[test]
fn the_changes_of_a_queue() {
    let push = Push {
        mode: Mode::New,
        now: NOW,
        entry: ENTRY,
        priority: 2,
        group: Some(b"g".into()),
        own: OWN,
        named: true,
        window: Some(NOW),
    };
    let claim =
        Claim { now: NOW, first: Some(NUMBER), turn: 8, consumer: Some(b"me".into()), level: Some(-1) };
    let claimed = ClaimedWire { id: IdRef::Num(1), lease: 5, level: Some(2), after: After::None };
    let header = Header {
        config: config(),
        totals: Totals { pushed: 1, moved_out: 2, ..Totals::default() },
        next_id: 1,
        next_seq: 2,
        next_turn: 3,
        next_death: 4,
        last_claim: NUMBER,
        paused_push: 5,
        paused_claim: 6,
        tokens: Some(Tokens { level: 7, at: NOW }),
    };
    let lane = LaneState { name: b"g".into(), paused_push: 1, paused_claim: 2, tokens: None };
    golden!(Wire<'_>:
        Wire::Push(..) => Wire::Push(push.clone(), vec![IdRef::Num(1), IdRef::Name(b"x")]) => "0000fd0080257214800d00fd0080257214800d00010701080201016702040103080101fd0080257214800d00020001010178",
        Wire::Claim(..) => Wire::Claim(claim.clone(), vec![claimed.clone()]) => "01fd0080257214800d0001fd00c012390ac006000801026d6501010100010a010400",
        Wire::Steps(..) => Wire::Steps(vec![(Who::Live(IdRef::Num(1)), Step::Due)]) => "020100000104",
        Wire::Config(..) => Wire::Config(Box::new(config()), NOW, Some(Tokens { level: 7, at: NOW })) => "03fc0087930310020a120000010000010a01fbe803010a01fbe80300000000fd0080257214800d00010efd0080257214800d00",
        Wire::Pause { .. } => Wire::Pause { group: Some(b"g"), push: Some(NOW), claim: None } => "0401016701fd0080257214800d0000",
        Wire::Purge(..) => Wire::Purge(Scope::All) => "0503",
        Wire::EndWindow(..) => Wire::EndWindow(IdRef::Name(b"x")) => "06010178",
        Wire::EndWindows(..) => Wire::EndWindows(NOW) => "07fd0080257214800d00",
        Wire::Refill(..) => Wire::Refill(NOW) => "08fd0080257214800d00",
        Wire::Arrive(..) => Wire::Arrive(vec![(record(), IdRef::Num(1))]) => "090102fd00c012390ac00600fd0080257214800d00fd0a80257214800d0002010167fd0080257214800d0007fd0080257214800d0001020401030803020101026d6501037768790101080001",
        Wire::Header(..) => Wire::Header(Box::new(header.clone())) => "0afc0087930310020a120000010000010a01fbe803010a01fbe80300000000010000000000000000000000000201020304fd00c012390ac006000a0c010efd0080257214800d00",
        Wire::Lanes(..) => Wire::Lanes(vec![lane.clone()]) => "0b010167020400",
        Wire::Windows(..) => Wire::Windows(vec![(IdRef::Num(1), NOW)]) => "0c010001fd0080257214800d00",
        Wire::Load(..) => Wire::Load(vec![(record(), IdRef::Num(1))]) => "0d0102fd00c012390ac00600fd0080257214800d00fd0a80257214800d0002010167fd0080257214800d0007fd0080257214800d0001020401030803020101026d6501037768790101080001",
        Wire::StepBack(..) => Wire::StepBack(NOW) => "0efd0080257214800d00",
        Wire::Untake(..) => Wire::Untake(vec![(record(), IdRef::Num(1))]) => "0f0102fd00c012390ac00600fd0080257214800d00fd0a80257214800d0002010167fd0080257214800d0007fd0080257214800d0001020401030803020101026d6501037768790101080001",
        Wire::Renumber => Wire::Renumber => "10",
        Wire::CutOff => Wire::CutOff => "11",
    );
}

#[test]
fn the_steps_of_a_message() {
    let after = After::Enter(ENTRY);
    golden!(Step<'_>:
        Step::Ack { .. } => Step::Ack { after } => "0002fd0080257214800d0001070108",
        Step::Expire { .. } => Step::Expire { cause: Some(Cause::Requeue), after } => "01010202fd0080257214800d0001070108",
        Step::Die { .. } => Step::Die { cause: Cause::Timeout, reason: b"why".into(), at: NOW, number: 4, after } => "020103776879fd0080257214800d000402fd0080257214800d0001070108",
        Step::Back { .. } => Step::Back { cause: Cause::Nack { counted: true }, reason: Some(b"why".into()), due: Some(NOW), place: Some((NOW, 7)) } => "030001010377687901fd0080257214800d0001fd0080257214800d0007",
        Step::Due => Step::Due => "04",
        Step::Extend { .. } => Step::Extend { deadline: NOW } => "05fd0080257214800d00",
        Step::Drop => Step::Drop => "06",
        Step::Delete => Step::Delete => "07",
        Step::Depart { .. } => Step::Depart { after } => "0802fd0080257214800d0001070108",
        Step::Redrive { .. } => Step::Redrive { now: NOW, entry: ENTRY } => "09fd0080257214800d00fd0080257214800d0001070108",
    );
}

#[test]
fn the_forms_of_what_they_are_made_of() {
    golden!(After:
        After::None => After::None => "00",
        After::Expired => After::Expired => "01",
        After::Enter(..) => After::Enter(ENTRY) => "02fd0080257214800d0001070108",
    );
    golden!(Cause:
        Cause::Nack { .. } => Cause::Nack { counted: false } => "0000",
        Cause::Timeout => Cause::Timeout => "01",
        Cause::Requeue => Cause::Requeue => "02",
    );
    golden!(Mode:
        Mode::New => Mode::New => "00",
        Mode::Replace => Mode::Replace => "01",
        Mode::Follow => Mode::Follow => "02",
    );
    golden!(Scope:
        Scope::Ready => Scope::Ready => "00",
        Scope::Delayed => Scope::Delayed => "01",
        Scope::Dead => Scope::Dead => "02",
        Scope::All => Scope::All => "03",
    );
    golden!(Who<'_>:
        Who::Live(..) => Who::Live(IdRef::Name(b"x")) => "00010178",
        Who::Dead(..) => Who::Dead(4) => "0104",
    );
    golden!(IdRef<'_>:
        IdRef::Num(..) => IdRef::Num(300) => "00fb2c01",
        IdRef::Name(..) => IdRef::Name(b"x") => "010178",
    );
    golden!(Stage:
        Stage::Ready => Stage::Ready => "00",
        Stage::Delayed { .. } => Stage::Delayed { due: NOW, retry: true } => "01fd0080257214800d0001",
        Stage::InFlight { .. } => Stage::InFlight { claim: NUMBER, claimed_at: NOW, deadline: NOW } => "02fd00c012390ac00600fd0080257214800d00fd0080257214800d00",
        Stage::Dead { .. } => Stage::Dead { number: 4, died_at: NOW, older: NONE, newer: NONE } => "0304fd0080257214800d00",
        Stage::Follower { .. } => Stage::Follower { due: NOW } => "04fd0080257214800d00",
    );
    golden!(Backoff:
        Backoff::None => Backoff::None => "00",
        Backoff::Fixed(..) => Backoff::Fixed(5) => "010a",
        Backoff::Exp { .. } => Backoff::Exp { base: 5, max: 9 } => "020a12",
    );
    golden!(OnFull:
        OnFull::Reject => OnFull::Reject => "00",
        OnFull::DropOld => OnFull::DropOld => "01",
    );
}
