//! The memory store, with faults at every call and a record of what was applied.

use super::faults::{Faults, Step};
use dedup_store::{
    Claim, ClaimAsk, Held, Noted, Renewal, Row, Standing, Standings, Store, StoreError, Transition,
    claim::To, memory::MemoryStore,
};
use schemas::{DeliveryKey, Reason};
use std::{
    future::Future,
    sync::{Arc, Mutex},
};
use uuid::Uuid;

#[derive(Clone, Debug)]
pub(crate) struct FakeStore {
    pub(crate) inner: MemoryStore,
    pub(crate) faults: Faults,
    events: Arc<Mutex<Vec<StoreEvent>>>,
}

/// A call that reached the store, in order.
#[derive(Clone, Debug)]
pub(crate) enum StoreEvent {
    Claimed(Held),
    Refused(Claim),
    Renewed,
    Moved {
        token: Uuid,
        /// End of the lease, as far as the caller knew.
        lease_until_ms: i64,
        to: To,
        answer: Transition,
    },
}

// === impl FakeStore ===

impl FakeStore {
    pub(crate) fn new(inner: MemoryStore, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            events: Arc::default(),
        }
    }

    pub(crate) fn events(&self) -> Vec<StoreEvent> {
        self.events.lock().unwrap().clone()
    }

    async fn noted<T: Clone>(
        &self,
        step: Step,
        call: impl Future<Output = Result<T, StoreError>>,
        event: impl FnOnce(T) -> StoreEvent,
    ) -> Result<T, StoreError> {
        let work = async {
            let answer = call.await?;
            self.events.lock().unwrap().push(event(answer.clone()));
            Ok(answer)
        };
        let answer = self.faults.around(step, work).await;
        answer.unwrap_or_else(|_| Err(StoreError::Unavailable("a fault".to_owned())))
    }

    async fn moved(
        &self,
        held: &Held,
        to: To,
        call: impl Future<Output = Result<Transition, StoreError>>,
    ) -> Result<Transition, StoreError> {
        let (token, lease_until_ms) = (held.row.claim_token, held.row.lease_until_ms);
        self.noted(Step::Transition, call, |answer| StoreEvent::Moved {
            token,
            lease_until_ms,
            to,
            answer,
        })
        .await
    }
}

impl Store for FakeStore {
    async fn claim(&self, ask: &ClaimAsk, now_ms: i64) -> Result<Claim, StoreError> {
        let event = |answer| match answer {
            Claim::Claimed(held) => StoreEvent::Claimed(held),
            refused @ (Claim::Busy { .. } | Claim::Superseded | Claim::Ended { .. }) => {
                StoreEvent::Refused(refused)
            }
        };
        self.noted(Step::Claim, self.inner.claim(ask, now_ms), event)
            .await
    }

    async fn renew(
        &self,
        held: &Held,
        lease_until_ms: i64,
        now_ms: i64,
    ) -> Result<Renewal, StoreError> {
        let call = self.inner.renew(held, lease_until_ms, now_ms);
        self.noted(Step::Renew, call, |_| StoreEvent::Renewed).await
    }

    async fn schedule(
        &self,
        held: &Held,
        not_before_ms: i64,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        let call = self.inner.schedule(held, not_before_ms, now_ms);
        self.moved(held, To::Waiting { not_before_ms }, call).await
    }

    async fn complete(&self, held: &Held, now_ms: i64) -> Result<Transition, StoreError> {
        let call = self.inner.complete(held, now_ms);
        self.moved(held, To::Completed { at_ms: now_ms }, call)
            .await
    }

    async fn fail(
        &self,
        held: &Held,
        reason: Reason,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        let call = self.inner.fail(held, reason, now_ms);
        let to = To::Failed {
            at_ms: now_ms,
            reason,
        };
        self.moved(held, to, call).await
    }

    async fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, StoreError> {
        self.inner.get(key, now_ms).await
    }

    async fn standings(&self) -> Result<Standings, StoreError> {
        self.inner.standings().await
    }

    async fn set_standing(&self, destination: &str, new: &Standing) -> Result<Noted, StoreError> {
        self.inner.set_standing(destination, new).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.inner.ready().await
    }
}
