//! Every outcome × every effect × every way to fail there, then recovery.

use crate::{
    driver::{Driver, Order, is_crash},
    fakes::{
        faults::{Faults, Mode, Step},
        send::{Sent, status},
        store::StoreEvent,
        world::{DAY_MS, START_MS, World, webhook},
    },
};
use dedup_store::{Row, Status, Transition, claim::To};
use dispatcher::outcome::{Outcome, of_status, without_answer};
use schemas::{DelayTier, OutcomeKind, Reason, Topic};
use std::time::Duration;
use uuid::Uuid;

/// Long enough for one renewal.
const ATTEMPT_TAKES: Duration = Duration::from_secs(6);

/// A history without faults.
struct Story {
    name: &'static str,
    script: Vec<Outcome>,
    attempts_max: u32,
    age_ms: i64,
    known: bool,
    /// None: delivered.
    ends: Option<Reason>,
}

fn stories() -> Vec<Story> {
    let story = |name, script, ends| Story {
        name,
        script,
        attempts_max: 12,
        age_ms: 0,
        known: true,
        ends,
    };
    let (failed, ok) = (status(500), status(204));
    vec![
        story("delivered", vec![ok.clone()], None),
        story("rejected", vec![status(404)], Some(Reason::Rejected)),
        story("gone", vec![status(410)], Some(Reason::Gone)),
        story(
            "throttled",
            vec![of_status(429, Some(b"40"), &[], 0), ok.clone()],
            None,
        ),
        story("failed", vec![failed.clone(), ok.clone()], None),
        story(
            "blocked",
            vec![without_answer(
                OutcomeKind::Blocked,
                "address is not public",
            )],
            Some(Reason::Blocked),
        ),
        Story {
            attempts_max: 2,
            ..story("exhausted", vec![failed], Some(Reason::Exhausted))
        },
        Story {
            age_ms: 4 * DAY_MS,
            ..story("expired", vec![ok.clone()], Some(Reason::Expired))
        },
        Story {
            known: false,
            ..story(
                "unknown destination",
                vec![ok],
                Some(Reason::UnknownDestination),
            )
        },
    ]
}

/// What is left of a history.
struct Left {
    /// Says which history it was.
    what: String,
    trace: Vec<Step>,
    /// The effects that met a fault.
    faults: Vec<(Step, Mode)>,
    sent: Vec<Sent>,
    crashes: usize,
}

#[tokio::test(start_paused = true)]
async fn a_fault_at_any_effect_of_any_outcome() {
    let mut histories = 0;
    for story in stories() {
        let calm = play(&story, &[], Order::OldestFirst).await;
        for (at, step) in calm.trace.iter().copied().enumerate() {
            for mode in modes(step) {
                for order in [Order::OldestFirst, Order::NewestFirst] {
                    let left = play(&story, &[(at, mode)], order).await;
                    assert_eq!(left.trace[..=at], calm.trace[..=at], "{}", left.what);
                    let crashes = usize::from(is_crash(mode));
                    assert_eq!(left.crashes, crashes, "{}", left.what);
                    check_sent(&calm, &left);
                    histories += 1;
                }
            }
        }
    }
    assert!(histories > 300, "{histories}");
}

/// The second dispatcher dies as well, at any effect of its recovery.
#[tokio::test(start_paused = true)]
async fn a_crash_at_any_effect_and_another_one_after_it() {
    for story in stories() {
        if !matches!(story.name, "failed" | "exhausted") {
            continue;
        }
        let calm = play(&story, &[], Order::OldestFirst).await;
        for first in 0..calm.trace.len() {
            let first = (first, Mode::CrashAfter);
            let once = play(&story, &[first], Order::OldestFirst).await;
            // Claims change nothing while they find the dead one's lease.
            let recovery = first.0 + 1..once.trace.len();
            for second in recovery.filter(|at| once.trace[*at] != Step::Claim) {
                let faults = [first, (second, Mode::CrashAfter)];
                let left = play(&story, &faults, Order::OldestFirst).await;
                assert!(left.crashes > 0, "{}", left.what);
                check_sent(&calm, &left);
            }
        }
    }
}

/// Which ways to fail an effect has.
fn modes(step: Step) -> Vec<Mode> {
    match step {
        Step::Send => vec![Mode::CrashBefore, Mode::CrashAfter],
        Step::Finish => vec![Mode::CrashBefore],
        Step::Claim | Step::Renew | Step::Hop | Step::Letter | Step::Transition => vec![
            Mode::CrashBefore,
            Mode::CrashAfter,
            Mode::Fail,
            Mode::LoseAnswer,
        ],
    }
}

/// One history from the receipt to the end, with all invariants checked.
async fn play(story: &Story, at: &[(usize, Mode)], order: Order) -> Left {
    let mut world = World::new(1, Faults::at(at));
    world.send.script(story.script.clone());
    world.send.takes(ATTEMPT_TAKES);
    match world.destinations.get_mut("billing") {
        Some(billing) if story.known => billing.retry.attempts_max = story.attempts_max,
        _ => world.destinations.clear(),
    }
    let webhook = webhook("d1", START_MS - story.age_ms);
    world.publish(&webhook).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(order).await;

    let trace = world.faults.trace();
    let met = |(at, mode): &(usize, Mode)| Some((*trace.get(*at)?, *mode));
    let faults: Vec<(Step, Mode)> = at.iter().filter_map(met).collect();
    let what = format!("{}: {faults:?} at {at:?}, {order:?}", story.name);
    let rows = world.store.inner.rows();
    assert_eq!(rows.len(), 1, "{what}");
    check_ended(&world, story, &rows[0].1, &what);
    check_winners(&world.store.events(), &what);
    check_attempts(&world, story, &faults, &what);
    // 5
    let sent = world.send.sent();
    assert!(sent.iter().all(|sent| sent.body == webhook.body), "{what}");
    for letter in world.letters() {
        assert_eq!(letter.body, webhook.body, "{what}");
        assert_eq!(letter.headers, webhook.headers, "{what}");
        assert_eq!(letter.content_type, webhook.content_type, "{what}");
    }
    Left {
        what,
        trace,
        faults,
        sent,
        crashes: driver.crashes,
    }
}

/// 1: completed, or dead-lettered with the same letter however often.
fn check_ended(world: &World, story: &Story, row: &Row, what: &str) {
    let letters = world.letters();
    assert_eq!(row.reason, story.ends, "{what}");
    match story.ends {
        None => {
            assert_eq!(row.status, Status::Completed, "{what}");
            assert_eq!(letters.len(), 0, "{what}");
        }
        Some(reason) => {
            assert_eq!(row.status, Status::Failed, "{what}");
            assert!(!letters.is_empty(), "{what}");
            for letter in &letters {
                assert_eq!(letter.reason, reason, "{what}");
                assert_eq!(letter.dead_letter_id, letters[0].dead_letter_id, "{what}");
            }
        }
    }
}

/// 2: only the newest claim's token moves the row, and one of them ends it.
fn check_winners(events: &[StoreEvent], what: &str) {
    let mut newest = Uuid::nil();
    let mut ends = Vec::new();
    for event in events {
        match event {
            StoreEvent::Claimed(held) => newest = held.row.claim_token,
            StoreEvent::Moved {
                token, to, answer, ..
            } => {
                assert_eq!(*answer == Transition::Applied, *token == newest, "{what}");
                let ended = matches!(to, To::Completed { .. } | To::Failed { .. });
                if ended && *answer == Transition::Applied && !ends.contains(token) {
                    ends.push(*token);
                }
            }
            StoreEvent::Refused(_) | StoreEvent::Renewed => {}
        }
    }
    assert_eq!(ends.len(), 1, "{what}");
}

/// 4: numbers grow and have a limit; nothing is sent before the time that its record names.
fn check_attempts(world: &World, story: &Story, faults: &[(Step, Mode)], what: &str) {
    let sent = world.send.sent();
    assert!(
        sent.iter().is_sorted_by(|a, b| a.attempt < b.attempt),
        "{what}: {sent:?}"
    );
    assert!(
        sent.iter().all(|sent| sent.attempt <= story.attempts_max),
        "{what}"
    );
    if !story.known || story.age_ms > 0 {
        assert_eq!(sent, [], "{what}");
    }
    // A crash between publish and transition: the row is still `processing`, so the store can not know that a retry was
    // scheduled, and the takeover makes the next attempt as soon as the lease is over.
    let unknowable = faults.iter().any(|fault| {
        matches!(
            fault,
            (Step::Hop, Mode::CrashAfter) | (Step::Transition, Mode::CrashBefore)
        )
    });
    let hops = DelayTier::ALL
        .into_iter()
        .flat_map(|tier| world.log.inner.records(Topic::Delay(tier)));
    for hop in hops.filter(|_| !unknowable) {
        let hop = world.codec.decode_delivery(&hop.value).unwrap();
        let attempts = sent.iter().filter(|sent| sent.attempt == hop.attempt);
        for sent in attempts.filter(|_| hop.fence.is_some()) {
            assert!(
                sent.at_ms >= hop.due_at_ms,
                "{what}: {sent:?} {}",
                hop.due_at_ms
            );
        }
    }
    for event in world.store.events() {
        if let StoreEvent::Moved {
            token,
            to: To::Waiting { not_before_ms },
            answer: Transition::Applied,
            ..
        } = event
        {
            let at = sent.iter().position(|sent| sent.token == token).unwrap();
            let next = sent.get(at + 1);
            assert!(
                next.is_none_or(|next| next.at_ms >= not_before_ms),
                "{what}"
            );
        }
    }
}

/// A known outcome is written again, never sent again: only a crash between the attempt and its transition repeats it.
fn check_sent(calm: &Left, left: &Left) {
    let repeats = left.faults.iter().filter(|fault| {
        matches!(
            fault,
            (Step::Renew, Mode::CrashBefore | Mode::CrashAfter)
                | (Step::Send, Mode::CrashAfter)
                | (
                    Step::Hop | Step::Letter,
                    Mode::CrashBefore | Mode::CrashAfter
                )
                | (Step::Transition, Mode::CrashBefore)
        )
    });
    let sent_max = calm.sent.len() + repeats.count();
    assert!(
        left.sent.len() <= sent_max,
        "{}: {:?}",
        left.what,
        left.sent
    );
}
