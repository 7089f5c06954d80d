//! The store of tests and simulations: a map in this process, with faults on demand.

use crate::{
    Claim, ClaimAsk, Held, Noted, Renewal, Retention, Row, Standing, Standings, Store, StoreError,
    Transition,
    claim::{self, Sees, Step, To},
    standing::{self, Turn},
};
use schemas::{DeliveryKey, Reason};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Writes between two sweeps of expired rows.
const SWEEP_EVERY: u64 = 1_024;

/// Claims in a map. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    retention: Retention,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<DeliveryKey, Row>,
    standings: Standings,
    writes: u64,
    faults: Faults,
}

#[derive(Debug, Default)]
struct Faults {
    unavailable: u32,
    answers_lost: u32,
    delay: Duration,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// An empty store that keeps rows as long as `retention` says.
    pub fn new(retention: Retention) -> Self {
        Self {
            retention,
            state: Arc::default(),
        }
    }

    /// The next `calls` calls do nothing and answer [`StoreError::Unavailable`]; readiness fails as long as any are left.
    pub fn fail_next(&self, calls: u32) {
        self.lock().faults.unavailable = calls;
    }

    /// The next `calls` calls do their work, but the answer is lost: [`StoreError::Unavailable`].
    pub fn lose_answers(&self, calls: u32) {
        self.lock().faults.answers_lost = calls;
    }

    /// Every call waits this long before it does its work.
    pub fn delay(&self, delay: Duration) {
        self.lock().faults.delay = delay;
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.lock().faults = Faults::default();
    }

    /// Every row there is, expired ones included, for oracles.
    pub fn rows(&self) -> Vec<(DeliveryKey, Row)> {
        self.lock()
            .rows
            .iter()
            .map(|(key, row)| (key.clone(), row.clone()))
            .collect()
    }

    /// One compare-and-set: decide on the row, write, answer, in one hold of the lock.
    async fn apply<T>(
        &self,
        key: &DeliveryKey,
        sees: Sees,
        now_ms: i64,
        decide: impl FnOnce(Option<&Row>) -> Step<T>,
    ) -> Result<T, StoreError> {
        self.wait().await;
        let mut state = self.lock();
        state.faults.refuse()?;
        let above_ms = sees.expiry_above_ms(now_ms);
        let seen = state.rows.get(key);
        let seen = seen.filter(|row| claim::expires_at_ms(row, &self.retention) > above_ms);
        let answer = match decide(seen) {
            Step::Write { row, then } => {
                state.rows.insert(key.clone(), row);
                state.sweep(&self.retention, now_ms);
                then
            }
            Step::Answer(answer) => answer,
        };
        state.faults.lose()?;
        Ok(answer)
    }

    async fn transition(&self, held: &Held, to: To, now_ms: i64) -> Result<Transition, StoreError> {
        self.apply(&held.key, Sees::Kept, now_ms, |row| {
            claim::transition(row, held, to)
        })
        .await
    }

    async fn wait(&self) {
        let delay = self.lock().faults.delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    async fn claim(&self, ask: &ClaimAsk, now_ms: i64) -> Result<Claim, StoreError> {
        self.apply(&ask.key, Sees::Live, now_ms, |row| {
            claim::decide(row, ask, now_ms)
        })
        .await
    }

    async fn renew(
        &self,
        held: &Held,
        lease_until_ms: i64,
        now_ms: i64,
    ) -> Result<Renewal, StoreError> {
        self.apply(&held.key, Sees::Kept, now_ms, |row| {
            claim::renewal(row, held, lease_until_ms)
        })
        .await
    }

    async fn schedule(
        &self,
        held: &Held,
        not_before_ms: i64,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        self.transition(held, To::Waiting { not_before_ms }, now_ms)
            .await
    }

    async fn complete(&self, held: &Held, now_ms: i64) -> Result<Transition, StoreError> {
        self.transition(held, To::Completed { at_ms: now_ms }, now_ms)
            .await
    }

    async fn fail(
        &self,
        held: &Held,
        reason: Reason,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        self.transition(
            held,
            To::Failed {
                at_ms: now_ms,
                reason,
            },
            now_ms,
        )
        .await
    }

    async fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, StoreError> {
        self.apply(key, Sees::Live, now_ms, |row| Step::Answer(row.cloned()))
            .await
    }

    async fn standings(&self) -> Result<Standings, StoreError> {
        self.wait().await;
        let mut state = self.lock();
        state.faults.refuse()?;
        let standings = state.standings.clone();
        state.faults.lose()?;
        Ok(standings)
    }

    async fn set_standing(&self, destination: &str, new: &Standing) -> Result<Noted, StoreError> {
        self.wait().await;
        let mut state = self.lock();
        state.faults.refuse()?;
        let noted = match standing::turn(state.standings.get(destination), new) {
            Turn::Answer(noted) => noted,
            Turn::Write => {
                state.standings.insert(destination.to_owned(), new.clone());
                Noted::Written
            }
        };
        state.faults.lose()?;
        Ok(noted)
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.wait().await;
        match self.lock().faults.unavailable {
            0 => Ok(()),
            _ => Err(unavailable()),
        }
    }
}

// === impl State ===

impl State {
    /// Removes what no call needs any more; this only keeps the map from growing.
    fn sweep(&mut self, retention: &Retention, now_ms: i64) {
        self.writes += 1;
        if self.writes.is_multiple_of(SWEEP_EVERY) {
            let until_ms = claim::purge_until_ms(now_ms);
            self.rows
                .retain(|_, row| claim::expires_at_ms(row, retention) > until_ms);
        }
    }
}

// === impl Faults ===

impl Faults {
    fn refuse(&mut self) -> Result<(), StoreError> {
        if self.unavailable == 0 {
            return Ok(());
        }
        self.unavailable -= 1;
        Err(unavailable())
    }

    fn lose(&mut self) -> Result<(), StoreError> {
        if self.answers_lost == 0 {
            return Ok(());
        }
        self.answers_lost -= 1;
        Err(StoreError::Unavailable("the answer was lost".to_owned()))
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("told to fail".to_owned())
}
