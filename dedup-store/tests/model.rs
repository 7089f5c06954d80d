//! The state machine under histories that nobody would think of: several workers with clocks of their own, crashes, lost
//! answers, copies of calls that come late, records read again, webhooks sent again.
//!
//! The world of a history obeys the order of effects (a hop is in the log before the row waits for it) and keeps the
//! clocks within the skew margin. What must then hold, for the reference (the pure functions over one row) and for every
//! store alike, is asserted after each step:
//!
//! 1. store and reference give the same answer and keep the same row;
//! 2. at most one worker believes that it holds a live lease;
//! 3. a stale token changes nothing, neither does any answer but a success, and only its fence wakes a waiting row;
//! 4. attempts grow by one per claim within a generation, and generations never go back;
//! 5. what has ended stays ended within its generation;
//! 6. no version of a row expires before an earlier one;
//! 7. a waiting row's record is in the log, and whatever happened, offering the log's records again ends the delivery.

use dedup_store::{
    Claim, ClaimAsk, Held, Renewal, Reopen, Retention, Row, Status, Store, Transition,
    claim::{self, Step, To},
    config::EmbeddedConfig,
    embedded::EmbeddedStore,
    memory::MemoryStore,
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use schemas::{DeliveryKey, Reason};
use uuid::Uuid;

const START_MS: i64 = 1_800_000_000_000;
const WORKERS: usize = 3;
const LEASE_MS: i64 = 15_000;
const MARGIN_MS: i64 = 500;
/// Longest wait between two attempts. Records are read early too: no rule here depends on their time.
const WAIT_MAX_MS: i64 = 40_000;
/// Each clock is at most this far off, so that no two differ by more than the margin.
const SKEW_MS: i64 = MARGIN_MS / 2;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    /// A worker reads a record (again) and asks for the delivery.
    Claim {
        worker: usize,
        record: usize,
        fate: Fate,
    },
    Renew {
        worker: usize,
        fate: Fate,
    },
    /// Publishes the next hop, then writes the transition.
    Schedule {
        worker: usize,
        wait_ms: i64,
        fate: Fate,
    },
    Complete {
        worker: usize,
        fate: Fate,
    },
    Fail {
        worker: usize,
        reason: Reason,
        fate: Fate,
    },
    /// The worker forgets what it holds.
    Crash {
        worker: usize,
    },
    Advance {
        ms: i64,
    },
    /// The worker's clock is set.
    Skew {
        worker: usize,
        ms: i64,
    },
    /// A copy of an earlier call arrives, or one that was held up until now.
    Copy {
        call: usize,
    },
    /// The sender sends the webhook again.
    Resend {
        reopen: Reopen,
        age_ms: i64,
    },
    /// Somebody replays the delivery under a higher generation.
    Replay {
        generation: u32,
    },
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// Carried out, the answer lost, made again.
    AnswerLost,
    /// Carried out, and the worker dies before it hears of it.
    Unheard,
    /// The worker dies, the call is held up on its way and may arrive at any later time.
    HeldUp,
}

#[derive(Clone, Debug)]
enum Call {
    Claim(ClaimAsk),
    Renew(Held, i64),
    Move(Held, To),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Claim(Claim),
    Renew(Renewal),
    Move(Transition),
}

#[derive(Clone, Debug)]
struct Record {
    attempt: u32,
    fence: Option<Uuid>,
    generation: u32,
    received_at_ms: i64,
    reopen: Reopen,
}

struct World<'a, S> {
    store: &'a S,
    retention: Retention,
    key: DeliveryKey,
    /// The reference: the row as the pure functions leave it.
    row: Option<Row>,
    now_ms: i64,
    skews_ms: [i64; WORKERS],
    held: [Option<Held>; WORKERS],
    log: Vec<Record>,
    calls: Vec<Call>,
    tokens: u128,
}

#[test]
fn memory_keeps_the_invariants() {
    check(600, 80, MemoryStore::new);
}

#[test]
fn embedded_keeps_the_invariants() {
    let dir = tempfile::TempDir::new().expect("a directory for the test");
    let mut opened = 0;
    check(16, 60, |retention| {
        opened += 1;
        let ms = |ms: i64| std::time::Duration::from_millis(ms.unsigned_abs());
        let mut config = EmbeddedConfig {
            dir: dir.path().join(opened.to_string()),
            ..Default::default()
        };
        config.deadline = ms(60_000);
        config.retention.open = ms(retention.open_ms);
        config.retention.failed = ms(retention.failed_ms);
        config.retention.completed = ms(retention.completed_ms);
        EmbeddedStore::open(&config).expect("a store")
    });
}

fn check<S: Store>(cases: u32, events: usize, open: impl FnMut(Retention) -> S) {
    let open = std::cell::RefCell::new(open);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(
        &(retention(), vec(event(), 1..events)),
        |(retention, history)| {
            let store = (*open.borrow_mut())(retention);
            runtime.block_on(World::new(&store, retention).live(history));
            Ok(())
        },
    );
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

// === impl World ===

impl<'a, S: Store> World<'a, S> {
    fn new(store: &'a S, retention: Retention) -> Self {
        let first = Record {
            attempt: 1,
            fence: None,
            generation: 0,
            received_at_ms: START_MS - 10,
            reopen: Reopen::Exhausted,
        };
        Self {
            store,
            retention,
            key: DeliveryKey {
                source: "github".to_owned(),
                delivery_id: "1".to_owned(),
                destination: "billing".to_owned(),
            },
            row: None,
            now_ms: START_MS,
            skews_ms: [0; WORKERS],
            held: [const { None }; WORKERS],
            log: vec![first],
            calls: Vec::new(),
            tokens: 0,
        }
    }

    async fn live(mut self, history: Vec<Event>) {
        for event in history {
            self.happen(event).await;
            self.check_owners();
            self.check_log();
        }
        self.drain().await;
    }

    async fn happen(&mut self, event: Event) {
        match event {
            Event::Claim {
                worker,
                record,
                fate,
            } => self.claim(worker, record, fate).await,
            Event::Renew { worker, fate } => self.renew(worker, fate).await,
            Event::Schedule {
                worker,
                wait_ms,
                fate,
            } => {
                self.schedule(worker, wait_ms, fate).await;
            }
            Event::Complete { worker, fate } => {
                let at_ms = self.clock(worker);
                self.leave(worker, To::Completed { at_ms }, fate).await;
            }
            Event::Fail {
                worker,
                reason,
                fate,
            } => {
                let at_ms = self.clock(worker);
                self.leave(worker, To::Failed { at_ms, reason }, fate).await;
            }
            Event::Crash { worker } => self.held[worker] = None,
            Event::Advance { ms } => self.now_ms += ms,
            Event::Skew { worker, ms } => self.skews_ms[worker] = ms,
            Event::Copy { call } => {
                if self.calls.is_empty() {
                    return;
                }
                let call = self.calls[call % self.calls.len()].clone();
                self.carry_out(&call, self.now_ms).await;
            }
            Event::Resend { reopen, age_ms } => {
                let received_at_ms = self.now_ms - age_ms;
                let first = self.log[0].clone();
                self.log.push(Record {
                    received_at_ms,
                    reopen,
                    ..first
                });
            }
            Event::Replay { generation } => {
                let first = self.log[0].clone();
                self.log.push(Record {
                    generation,
                    ..first
                });
            }
        }
    }

    async fn claim(&mut self, worker: usize, record: usize, fate: Fate) {
        let record = self.log[record % self.log.len()].clone();
        let ask = self.ask(&record);
        let answer = self.call(worker, Call::Claim(ask), fate).await;
        if let Some(Answer::Claim(Claim::Claimed(held))) = answer {
            self.held[worker] = Some(held);
        }
    }

    async fn renew(&mut self, worker: usize, fate: Fate) {
        let Some(held) = self.held[worker].clone() else {
            return;
        };
        let until_ms = self.clock(worker) + LEASE_MS;
        match self
            .call(worker, Call::Renew(held.clone(), until_ms), fate)
            .await
        {
            Some(Answer::Renew(Renewal::Renewed { lease_until_ms })) => {
                let row = Row {
                    lease_until_ms,
                    ..held.row
                };
                self.held[worker] = Some(Held { row, ..held });
            }
            Some(_) => self.held[worker] = None,
            None => {}
        }
    }

    async fn schedule(&mut self, worker: usize, wait_ms: i64, fate: Fate) {
        let Some(held) = &self.held[worker] else {
            return;
        };
        self.log.push(Record {
            attempt: held.row.attempts + 1,
            fence: Some(held.row.claim_token),
            generation: held.row.generation,
            ..self.log[0].clone()
        });
        let not_before_ms = self.clock(worker) + wait_ms;
        self.leave(worker, To::Waiting { not_before_ms }, fate)
            .await;
    }

    async fn leave(&mut self, worker: usize, to: To, fate: Fate) {
        if let Some(held) = self.held[worker].take() {
            self.call(worker, Call::Move(held, to), fate).await;
        }
    }

    /// Makes a call as its fate wants it; none when the worker never hears the answer.
    async fn call(&mut self, worker: usize, call: Call, fate: Fate) -> Option<Answer> {
        let now_ms = self.clock(worker);
        self.calls.push(call.clone());
        match fate {
            Fate::HeldUp => {
                self.held[worker] = None;
                None
            }
            Fate::Unheard => {
                self.carry_out(&call, now_ms).await;
                self.held[worker] = None;
                None
            }
            Fate::Answered => Some(self.carry_out(&call, now_ms).await),
            Fate::AnswerLost => {
                let lost = self.carry_out(&call, now_ms).await;
                let heard = self.carry_out(&call, now_ms).await;
                assert_eq!(
                    succeeds(&heard),
                    succeeds(&lost),
                    "{call:?}: {lost:?}, {heard:?}"
                );
                Some(heard)
            }
        }
    }

    /// Carries a call out on the store and on the reference, and compares before and after.
    async fn carry_out(&mut self, call: &Call, now_ms: i64) -> Answer {
        let live = self.live_row(now_ms);
        let written = self.row.clone();
        assert_eq!(self.store.get(&self.key, now_ms).await, Ok(live.clone()));
        // An expired row is there for its owner alone. No history is so long that it would have been removed.
        let is_claim = matches!(call, Call::Claim(_));
        let before = if is_claim { live } else { written.clone() };
        let expected = match call {
            Call::Claim(ask) => {
                self.write(claim::decide(before.as_ref(), ask, now_ms), Answer::Claim)
            }
            Call::Renew(held, until_ms) => self.write(
                claim::renewal(before.as_ref(), held, *until_ms),
                Answer::Renew,
            ),
            Call::Move(held, to) => {
                let to = arrives(*to, now_ms);
                self.write(claim::transition(before.as_ref(), held, to), Answer::Move)
            }
        };
        let answer = match call {
            Call::Claim(ask) => self.store.claim(ask, now_ms).await.map(Answer::Claim),
            Call::Renew(held, until_ms) => self
                .store
                .renew(held, *until_ms, now_ms)
                .await
                .map(Answer::Renew),
            Call::Move(held, To::Waiting { not_before_ms }) => self
                .store
                .schedule(held, *not_before_ms, now_ms)
                .await
                .map(Answer::Move),
            Call::Move(held, To::Completed { .. }) => {
                self.store.complete(held, now_ms).await.map(Answer::Move)
            }
            Call::Move(held, To::Failed { reason, .. }) => self
                .store
                .fail(held, *reason, now_ms)
                .await
                .map(Answer::Move),
        };
        assert_eq!(answer.as_ref(), Ok(&expected), "{call:?} on {before:?}");
        let after = self
            .store
            .get(&self.key, now_ms)
            .await
            .expect("a row or none");
        assert_eq!(after, self.live_row(now_ms), "{call:?} on {before:?}");
        let after = if is_claim { after } else { self.row.clone() };
        check_step(call, &expected, before.as_ref(), after.as_ref());
        check_expiry(written.as_ref(), self.row.as_ref(), &self.retention);
        expected
    }

    fn write<T>(&mut self, step: Step<T>, answer: impl Fn(T) -> Answer) -> Answer {
        answer(match step {
            Step::Write { row, then } => {
                self.row = Some(row);
                then
            }
            Step::Answer(then) => then,
        })
    }

    fn live_row(&self, now_ms: i64) -> Option<Row> {
        let retention = &self.retention;
        self.row
            .clone()
            .filter(|row| claim::expires_at_ms(row, retention) > now_ms)
    }

    fn ask(&mut self, record: &Record) -> ClaimAsk {
        self.tokens += 1;
        ClaimAsk {
            key: self.key.clone(),
            token: Uuid::from_u128(self.tokens),
            lease_ms: LEASE_MS,
            skew_margin_ms: MARGIN_MS,
            attempt: record.attempt,
            fence: record.fence,
            generation: record.generation,
            received_at_ms: record.received_at_ms,
            reopen: record.reopen,
        }
    }

    fn clock(&self, worker: usize) -> i64 {
        self.now_ms + self.skews_ms[worker]
    }

    /// Invariant 2.
    fn check_owners(&self) {
        let believes = |worker: &usize| {
            let now_ms = self.clock(*worker);
            self.held[*worker]
                .as_ref()
                .is_some_and(|held| now_ms <= held.row.lease_until_ms)
        };
        let owners: Vec<_> = (0..WORKERS).filter(believes).collect();
        assert!(
            owners.len() <= 1,
            "{owners:?} all believe to hold the lease: {:?}",
            self.held
        );
    }

    /// Invariant 7, its first half.
    fn check_log(&self) {
        if let Some(row) = &self.row
            && row.status == Status::Waiting
        {
            let fence = Some(row.claim_token);
            assert!(
                self.log.iter().any(|record| record.fence == fence),
                "nobody will wake {row:?}"
            );
        }
    }

    /// Invariant 7, its second half: one worker that is left reads everything again.
    async fn drain(mut self) {
        self.now_ms += WAIT_MAX_MS + LEASE_MS + 2 * MARGIN_MS;
        for record in self.log.clone() {
            let ask = self.ask(&record);
            if let Answer::Claim(Claim::Claimed(held)) =
                self.carry_out(&Call::Claim(ask), self.now_ms).await
            {
                let to = To::Completed { at_ms: self.now_ms };
                let answer = self.carry_out(&Call::Move(held, to), self.now_ms).await;
                assert_eq!(answer, Answer::Move(Transition::Applied));
            }
        }
        let row = self.live_row(self.now_ms);
        let ended = row
            .as_ref()
            .is_some_and(|row| matches!(row.status, Status::Completed | Status::Failed));
        assert!(ended, "never ended: {row:?}");
    }
}

/// Invariants 3, 4 and 5 for one call.
fn check_step(call: &Call, answer: &Answer, before: Option<&Row>, after: Option<&Row>) {
    if !succeeds(answer) {
        assert_eq!(before, after, "{call:?} was answered with {answer:?}");
    }
    let token = match call {
        Call::Claim(ask) => ask.token,
        Call::Renew(held, _) | Call::Move(held, _) => held.row.claim_token,
    };
    let stale = before.is_none_or(|before| before.claim_token != token);
    if stale && !matches!(call, Call::Claim(_)) {
        assert_eq!(before, after, "{call:?} has a stale token");
        assert!(!succeeds(answer), "{call:?} has a stale token");
    }
    let Some(after) = after else { return };
    assert!(after.attempts >= 1);
    let Some(before) = before else { return };
    assert!(
        after.generation >= before.generation,
        "{before:?} -> {after:?}"
    );
    if let Call::Claim(ask) = call
        && before.status == Status::Waiting
        && succeeds(answer)
    {
        assert_eq!(
            ask.fence,
            Some(before.claim_token),
            "claimed without the fence: {before:?}"
        );
    }
    if after.generation > before.generation {
        assert!(
            matches!(before.status, Status::Completed | Status::Failed),
            "{before:?}"
        );
        return;
    }
    let claims = u32::from(after.claim_token != before.claim_token);
    assert_eq!(
        after.attempts,
        before.attempts + claims,
        "{before:?} -> {after:?}"
    );
    assert_eq!(after.created_at_ms, before.created_at_ms);
    if matches!(before.status, Status::Completed | Status::Failed) {
        assert_eq!(before, after, "{call:?}");
    }
}

/// Invariant 6.
fn check_expiry(before: Option<&Row>, after: Option<&Row>, retention: &Retention) {
    if let (Some(before), Some(after)) = (before, after) {
        let (was_ms, is_ms) = (
            claim::expires_at_ms(before, retention),
            claim::expires_at_ms(after, retention),
        );
        assert!(
            is_ms >= was_ms,
            "expires {} ms earlier: {before:?} -> {after:?}",
            was_ms - is_ms
        );
    }
}

/// A call that was held up is stamped with its arrival: the port takes the time of the call.
fn arrives(to: To, now_ms: i64) -> To {
    match to {
        To::Waiting { not_before_ms } => To::Waiting { not_before_ms },
        To::Completed { .. } => To::Completed { at_ms: now_ms },
        To::Failed { reason, .. } => To::Failed {
            at_ms: now_ms,
            reason,
        },
    }
}

fn succeeds(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Claim(Claim::Claimed(_))
            | Answer::Renew(Renewal::Renewed { .. })
            | Answer::Move(Transition::Applied)
    )
}

fn retention() -> impl Strategy<Value = Retention> {
    prop_oneof![
        // Rows expire in mid-history.
        Just(Retention {
            open_ms: 5_000,
            failed_ms: 20_000,
            completed_ms: 40_000
        }),
        // One for all states: the hardest for monotone expiry.
        Just(Retention {
            open_ms: 60_000,
            failed_ms: 60_000,
            completed_ms: 60_000
        }),
        Just(Retention {
            open_ms: 86_400_000,
            failed_ms: 14 * 86_400_000,
            completed_ms: 30 * 86_400_000,
        }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let worker = || 0..WORKERS;
    prop_oneof![
        8 => (worker(), any::<usize>(), fate())
            .prop_map(|(worker, record, fate)| Event::Claim { worker, record, fate }),
        3 => (worker(), fate()).prop_map(|(worker, fate)| Event::Renew { worker, fate }),
        4 => (worker(), prop_oneof![0..100_i64, 5_000..WAIT_MAX_MS], fate())
            .prop_map(|(worker, wait_ms, fate)| Event::Schedule { worker, wait_ms, fate }),
        2 => (worker(), fate()).prop_map(|(worker, fate)| Event::Complete { worker, fate }),
        3 => (worker(), proptest::sample::select(&Reason::ALL[..]), fate())
            .prop_map(|(worker, reason, fate)| Event::Fail { worker, reason, fate }),
        1 => worker().prop_map(|worker| Event::Crash { worker }),
        5 => prop_oneof![
            0..300_i64,
            LEASE_MS - MARGIN_MS..LEASE_MS + MARGIN_MS + 2,
            Just(LEASE_MS + MARGIN_MS),
            0..50_000_i64,
        ].prop_map(|ms| Event::Advance { ms }),
        2 => (worker(), prop_oneof![Just(-SKEW_MS), Just(SKEW_MS), -SKEW_MS..=SKEW_MS]).prop_map(|(worker, ms)| Event::Skew { worker, ms }),
        3 => any::<usize>().prop_map(|call| Event::Copy { call }),
        2 => (reopen(), prop_oneof![Just(0), -SKEW_MS..20_000_i64])
            .prop_map(|(reopen, age_ms)| Event::Resend { reopen, age_ms }),
        1 => (1..4_u32).prop_map(|generation| Event::Replay { generation }),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Answered),
        2 => Just(Fate::AnswerLost),
        1 => Just(Fate::Unheard),
        1 => Just(Fate::HeldUp),
    ]
}

fn reopen() -> impl Strategy<Value = Reopen> {
    prop_oneof![
        Just(Reopen::Exhausted),
        Just(Reopen::AnyFailed),
        Just(Reopen::Never)
    ]
}
