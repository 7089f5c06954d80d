use super::*;
use crate::{dead_letters::DeadLetter, random::SplitMix, sender::Sent};
use proptest::prelude::*;

const TERMS: Terms = Terms {
    timeout_ms: 6_000,
    attempts_max: 3,
    base_ms: 5_000,
    retry_after_ms: 7_000,
};

fn sent(id: &str, status: Option<u16>, at_ms: i64) -> Sent {
    Sent {
        delivery_id: id.into(),
        body_sha256: format!("body of {id}"),
        status,
        failure: String::new(),
        at_ms,
    }
}

fn arrival(id: &str, attempt: u32, sent_by: usize, status: u16, at_ms: i64) -> Arrival {
    Arrival {
        path: "/x".into(),
        delivery_id: id.into(),
        webhook_id: format!("w_{id}"),
        attempt,
        sent_by: Some(sent_by),
        body_sha256: format!("body of {id}"),
        headers: http::HeaderMap::new(),
        status: Some(status),
        at_ms,
        answered_at_ms: Some(at_ms),
        uncertain: false,
    }
}

fn letter(id: &str, reason: &str, attempts: u32) -> DeadLetter {
    DeadLetter {
        source: "github".into(),
        delivery_id: id.into(),
        destination: "x".into(),
        reason: reason.into(),
        body: Vec::new(),
        record: serde_json::json!({ "value": { "attempts": attempts } }),
    }
}

fn touch(cause: Cause, instance: Option<usize>, from_ms: i64, to_ms: i64) -> Touch {
    Touch {
        cause,
        instance,
        from_ms,
        to_ms,
    }
}

fn facts(sent: Vec<Sent>, arrivals: Vec<Arrival>, touches: Vec<Touch>) -> Facts {
    let oracle = Oracle {
        sent,
        arrivals,
        destinations: vec![("x".to_owned(), "/x".to_owned())],
        ..Oracle::default()
    };
    Facts {
        oracle,
        touches,
        terms: TERMS,
    }
}

/// Two attempts at 10 s and 30 s by dispatchers 1 and 2, the first one accepted.
fn repeated(touches: Vec<Touch>) -> Verdict {
    let arrivals = vec![
        arrival("a", 1, 1, 200, 10_000),
        arrival("a", 2, 2, 200, 30_000),
    ];
    facts(vec![sent("a", Some(202), 0)], arrivals, touches).judge()
}

fn causes(verdict: &Verdict) -> Vec<Cause> {
    verdict.explained.keys().copied().collect()
}

#[test]
fn a_repeat_that_nothing_touched_is_unexplained() {
    assert_eq!(repeated(vec![]).unexplained.len(), 1);
    for touch in [
        touch(Cause::Killed, Some(2), 10_500, 10_500),
        touch(Cause::Killed, Some(1), 5_000, 5_000),
        touch(Cause::Killed, Some(1), 20_000, 20_000),
        touch(Cause::Frozen, Some(1), 15_000, 25_000),
        touch(Cause::Frozen, Some(2), 9_000, 29_000),
        touch(Cause::Store, None, 14_000, 20_000),
        touch(Cause::Store, None, -20_000, -1_000),
    ] {
        let verdict = repeated(vec![touch]);
        assert_eq!(verdict.unexplained.len(), 1, "{touch:?}");
        assert_eq!(verdict.faults().len(), 1, "{touch:?}");
    }
}

#[test]
fn a_repeat_is_explained_by_the_narrowest_fault_that_touched_it() {
    let killed = touch(Cause::Killed, Some(1), 11_000, 11_000);
    let frozen = touch(Cause::Frozen, Some(1), 9_000, 29_000);
    let store = touch(Cause::Store, None, 8_000, 12_000);
    for (touches, cause) in [
        (vec![killed], Cause::Killed),
        (vec![frozen], Cause::Frozen),
        (vec![store], Cause::Store),
        (vec![store, frozen], Cause::Frozen),
        (vec![store, killed, frozen], Cause::Killed),
    ] {
        let verdict = repeated(touches);
        assert_eq!(causes(&verdict), [cause]);
        assert!(verdict.faults().is_empty());
    }
}

#[test]
fn a_late_answer_explains_a_repeat() {
    let mut first = arrival("a", 1, 1, 200, 10_000);
    first.answered_at_ms = Some(15_000);
    let arrivals = vec![first, arrival("a", 2, 1, 200, 22_000)];
    let verdict = facts(vec![sent("a", Some(202), 0)], arrivals, vec![]).judge();
    assert_eq!(causes(&verdict), [Cause::Late]);
}

#[test]
fn an_attempt_after_a_failed_one_is_no_repeat_but_it_waits() {
    let judge = |second_ms: i64, status: u16| {
        let arrivals = vec![
            arrival("a", 1, 1, status, 10_000),
            arrival("a", 2, 1, 200, second_ms),
        ];
        facts(vec![sent("a", Some(202), 0)], arrivals, vec![]).judge()
    };
    assert!(judge(15_000, 503).faults().is_empty());
    assert_eq!(judge(14_999, 503).early.len(), 1);
    assert!(judge(17_000, 429).faults().is_empty());
    assert_eq!(judge(16_999, 429).early.len(), 1);
}

#[test]
fn a_frozen_dispatcher_that_goes_on_is_not_early() {
    let arrivals = vec![
        arrival("a", 2, 2, 503, 16_000),
        arrival("a", 1, 1, 503, 18_000),
        arrival("a", 3, 2, 200, 23_000),
    ];
    let frozen = touch(Cause::Frozen, Some(1), 1_000, 17_900);
    let sent = vec![sent("a", Some(202), 0)];
    assert!(
        facts(sent.clone(), arrivals.clone(), vec![frozen])
            .judge()
            .faults()
            .is_empty()
    );
    assert_eq!(facts(sent, arrivals, vec![]).judge().early.len(), 1);
}

#[test]
fn attempts_are_numbered_and_bounded() {
    let arrivals = vec![
        arrival("a", 1, 1, 503, 10_000),
        arrival("a", 1, 2, 503, 30_000),
        arrival("a", 4, 2, 200, 50_000),
    ];
    let verdict = facts(vec![sent("a", Some(202), 0)], arrivals, vec![]).judge();
    assert_eq!(verdict.same_attempt.len(), 1);
    assert_eq!(verdict.too_many.len(), 1);
}

#[test]
fn a_dead_letter_needs_somebody_who_gave_its_reason() {
    let judge = |letter: DeadLetter| {
        let arrivals = vec![arrival("a", 1, 1, 422, 10_000)];
        let mut facts = facts(vec![sent("a", Some(202), 0)], arrivals, vec![]);
        facts.oracle.dead_letters = vec![DeadLetter {
            body: Vec::new(),
            ..letter
        }];
        facts.judge().unjust.len()
    };
    assert_eq!(judge(letter("a", "rejected", 1)), 0);
    assert_eq!(judge(letter("a", "gone", 1)), 1);
    assert_eq!(judge(letter("b", "rejected", 1)), 1);
    assert_eq!(judge(letter("a", "exhausted", 3)), 0);
    assert_eq!(judge(letter("a", "exhausted", 2)), 1);
    assert_eq!(judge(letter("a", "unknown_destination", 1)), 1);
}

#[test]
fn recovery_is_counted_to_a_webhook_that_is_fresh() {
    let sent = vec![
        sent("before", Some(202), 900),
        sent("during", None, 1_500),
        sent("during", Some(202), 2_500),
        sent("after", Some(202), 3_000),
    ];
    let arrivals = vec![
        arrival("before", 1, 1, 200, 2_100),
        arrival("after", 1, 1, 200, 3_100),
        arrival("during", 1, 1, 200, 2_900),
    ];
    let facts = facts(sent, arrivals, vec![]);
    let mut injected = Injected {
        fault: Fault::DroppedAnswers,
        from_ms: 1_000,
        ended_ms: 1_500,
        mended_ms: 2_000,
    };
    assert_eq!(recovery_ms(&injected, &facts.oracle, "/x"), Some(900));
    injected.mended_ms = 4_000;
    assert_eq!(recovery_ms(&injected, &facts.oracle, "/x"), None);
}

/// A history as a right system under faults could have made it: attempts fail, dispatchers are killed after an answer, the
/// store is away, requests to ingest have no answer and are sent again.
fn history(seed: u64, count: usize) -> Facts {
    let mut random = SplitMix::new(seed);
    let (mut all, mut arrivals, mut touches) = (vec![], vec![], vec![]);
    for number in 0..count {
        let id = format!("id-{number}");
        let mut at_ms = 60_000 * number as i64;
        if random.below(4) == 0 {
            all.push(sent(&id, None, at_ms));
        }
        let acknowledged = random.below(10) > 0;
        all.push(sent(&id, Some(if acknowledged { 202 } else { 503 }), at_ms));
        if !acknowledged && random.below(2) == 0 {
            continue;
        }
        let ends = random.below(TERMS.attempts_max as usize) as u32 + 1;
        for attempt in 1..=ends {
            at_ms += 7_000 + random.below(5_000) as i64;
            let sent_by = random.below(3);
            let status = if attempt == ends {
                200
            } else {
                [200, 429, 503][random.below(3)]
            };
            arrivals.push(arrival(&id, attempt, sent_by, status, at_ms));
            if status == 200 && attempt < ends {
                let killed = touch(Cause::Killed, Some(sent_by), at_ms + 10, at_ms + 10);
                let store = touch(Cause::Store, None, at_ms - 500, at_ms + 9_000);
                touches.push(if random.below(2) == 0 { killed } else { store });
            }
        }
    }
    facts(all, arrivals, touches)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_right_history_is_clean_and_whatever_is_planted_is_found(seed: u64, at: prop::sample::Index) {
        let clean = || history(seed, 40);
        let found = |facts: &Facts| -> Vec<&'static str> {
            facts.judge().faults().iter().map(|(name, _)| *name).collect()
        };
        prop_assert_eq!(found(&clean()), Vec::<&str>::new());

        let owed: Vec<String> = clean().oracle.sent.iter().filter(|it| it.acknowledged()).map(|it| it.delivery_id.clone()).collect();
        let victim = at.get(&owed);
        let mut lost = clean();
        lost.oracle.arrivals.retain(|it| it.delivery_id != *victim);
        prop_assert_eq!(found(&lost), ["lost"]);

        let mut foreign = clean();
        foreign.oracle.arrivals.push(arrival("nobody's", 1, 1, 200, 5));
        prop_assert_eq!(found(&foreign), ["foreign"]);

        let mut altered = clean();
        let index = at.index(altered.oracle.arrivals.len());
        altered.oracle.arrivals[index].body_sha256 = "other bytes".into();
        prop_assert_eq!(found(&altered), ["altered"]);

        let mut repeated = clean();
        let last = repeated.oracle.arrivals.iter().filter(|it| it.delivery_id == *victim).max_by_key(|it| it.at_ms);
        let last = last.expect("it arrived").clone();
        repeated.touches.clear();
        let kept = last.delivery_id.clone();
        repeated.oracle.arrivals.retain(|it| it.delivery_id != kept);
        repeated.oracle.arrivals.push(Arrival { attempt: 1, ..last.clone() });
        repeated.oracle.arrivals.push(Arrival { attempt: 2, at_ms: last.at_ms + 20_000, ..last });
        prop_assert!(found(&repeated).contains(&"repeats unexplained"));
    }
}
