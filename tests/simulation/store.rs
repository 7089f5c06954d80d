//! The store as one process sees it: the memory store behind a network that loses and delays.

use crate::scene::{Life, Scene};
use dedup_store::{
    Claim, ClaimAsk, Held, Noted, Renewal, Row, Standing, Standings, Store, StoreError, Transition,
    claim::To,
};
use schemas::{DeliveryKey, Reason};
use std::{sync::Arc, time::Duration};
use uuid::Uuid;

#[derive(Clone, Debug)]
pub(crate) struct SimStore {
    pub(crate) scene: Arc<Scene>,
    pub(crate) life: Life,
}

/// A statement, as it can be issued again later.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Claim(ClaimAsk),
    Renew { held: Held, lease_until_ms: i64 },
    Move { held: Held, to: To },
}

/// A call on its way, with what is known of its sender.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) call: Call,
    pub(crate) now_ms: i64,
    /// Difference of the caller's clock to the true time.
    pub(crate) skew_ms: i64,
    pub(crate) life: usize,
    pub(crate) who: String,
}

#[derive(Clone, Debug)]
enum Answer {
    Claim(Claim),
    Renewal(Renewal),
    Transition(Transition),
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Unavailable,
    AnswerLost,
    AnswerLate(Duration),
    CopyLate { also_now: bool, after: Duration },
}

// === impl SimStore ===

impl SimStore {
    async fn call(&self, call: Call, now_ms: i64) -> Result<Answer, StoreError> {
        self.life.step().await;
        let scene = &self.scene;
        let issued = Issued {
            now_ms,
            skew_ms: self.life.clock().now_ms() - scene.clock.now_ms(),
            life: self.life.number(),
            who: self.life.name().to_owned(),
            call,
        };
        scene.oracle().called(scene.at_ms(), issued.call.token());
        // A round trip takes time, so that others come between.
        tokio::time::sleep(Duration::from_millis(scene.lot.below(4) as u64)).await;
        let trouble = self.trouble();
        if let Some(trouble) = trouble {
            scene.oracle().trouble(issued.call.key());
            let what = format!("store: {trouble:?} {}", issued.call.name());
            scene.tell(self.life.name(), &what);
        }
        let answer = match trouble {
            None => Ok(apply(scene, &issued).await),
            Some(Trouble::Unavailable) => Err(unavailable()),
            Some(Trouble::AnswerLost) => {
                apply(scene, &issued).await;
                Err(unavailable())
            }
            Some(Trouble::AnswerLate(after)) => {
                let answer = apply(scene, &issued).await;
                tokio::time::sleep(after).await;
                Ok(answer)
            }
            Some(Trouble::CopyLate { also_now, after }) => {
                if also_now {
                    apply(scene, &issued).await;
                }
                let (scene, copy) = (Arc::clone(scene), issued.clone());
                // It is in the network: nobody's death stops it.
                drop(tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    apply(&scene, &copy).await;
                }));
                Err(unavailable())
            }
        };
        self.life.step().await;
        answer
    }

    fn trouble(&self) -> Option<Trouble> {
        let weather = self.scene.weather();
        let cut = self
            .life
            .dispatcher()
            .is_some_and(|number| weather.cut[number]);
        let (lot, weather) = (&self.scene.lot, weather.store);
        if cut || lot.chance(weather.unavailable) {
            Some(Trouble::Unavailable)
        } else if lot.chance(weather.answer_lost) {
            Some(Trouble::AnswerLost)
        } else if lot.chance(weather.answer_late) {
            let late_ms = lot.pick(&[20, 300, 1_900]);
            Some(Trouble::AnswerLate(Duration::from_millis(late_ms)))
        } else if lot.chance(weather.copy_late) {
            Some(Trouble::CopyLate {
                also_now: lot.chance(0.5),
                after: Duration::from_millis(lot.pick(&[100, 2_000, 9_000])),
            })
        } else {
            None
        }
    }

    async fn moved(&self, held: &Held, to: To, now_ms: i64) -> Result<Transition, StoreError> {
        let held = held.clone();
        match self.call(Call::Move { held, to }, now_ms).await? {
            Answer::Transition(answer) => Ok(answer),
            other @ (Answer::Claim(_) | Answer::Renewal(_)) => panic!("{other:?}"),
        }
    }
}

impl Store for SimStore {
    async fn claim(&self, ask: &ClaimAsk, now_ms: i64) -> Result<Claim, StoreError> {
        match self.call(Call::Claim(ask.clone()), now_ms).await? {
            Answer::Claim(answer) => Ok(answer),
            other @ (Answer::Renewal(_) | Answer::Transition(_)) => panic!("{other:?}"),
        }
    }

    async fn renew(
        &self,
        held: &Held,
        lease_until_ms: i64,
        now_ms: i64,
    ) -> Result<Renewal, StoreError> {
        let held = held.clone();
        let call = Call::Renew {
            held,
            lease_until_ms,
        };
        match self.call(call, now_ms).await? {
            Answer::Renewal(answer) => Ok(answer),
            other @ (Answer::Claim(_) | Answer::Transition(_)) => panic!("{other:?}"),
        }
    }

    async fn schedule(
        &self,
        held: &Held,
        not_before_ms: i64,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        self.moved(held, To::Waiting { not_before_ms }, now_ms)
            .await
    }

    async fn complete(&self, held: &Held, now_ms: i64) -> Result<Transition, StoreError> {
        self.moved(held, To::Completed { at_ms: now_ms }, now_ms)
            .await
    }

    async fn fail(
        &self,
        held: &Held,
        reason: Reason,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        let at_ms = now_ms;
        self.moved(held, To::Failed { at_ms, reason }, now_ms).await
    }

    async fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, StoreError> {
        self.life.step().await;
        self.scene.store.get(key, now_ms).await
    }

    async fn standings(&self) -> Result<Standings, StoreError> {
        self.scene.store.standings().await
    }

    async fn set_standing(&self, destination: &str, new: &Standing) -> Result<Noted, StoreError> {
        self.scene.store.set_standing(destination, new).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

// === impl Call ===

impl Call {
    pub(crate) fn key(&self) -> &DeliveryKey {
        match self {
            Self::Claim(ask) => &ask.key,
            Self::Renew { held, .. } | Self::Move { held, .. } => &held.key,
        }
    }

    pub(crate) fn token(&self) -> Uuid {
        match self {
            Self::Claim(ask) => ask.token,
            Self::Renew { held, .. } | Self::Move { held, .. } => held.row.claim_token,
        }
    }

    pub(crate) fn name(&self) -> String {
        let what = match self {
            Self::Claim(_) => "claim",
            Self::Renew { .. } => "renew",
            Self::Move { to, .. } => to.status().as_str(),
        };
        format!("{what} {} {}", self.key(), short(self.token()))
    }
}

/// Runs a statement in the store, and shows the oracle the row before and after it. Nothing comes between.
async fn apply(scene: &Scene, issued: &Issued) -> Answer {
    let key = issued.call.key();
    // Expired or not: this is no claim.
    let look = || scene.store.get(key, i64::MIN);
    let before = look().await.expect("no faults of its own");
    let (store, now_ms) = (&scene.store, issued.now_ms);
    let answer = match &issued.call {
        Call::Claim(ask) => store.claim(ask, now_ms).await.map(Answer::Claim),
        Call::Renew {
            held,
            lease_until_ms,
        } => {
            let renewed = store.renew(held, *lease_until_ms, now_ms).await;
            renewed.map(Answer::Renewal)
        }
        Call::Move { held, to } => match *to {
            To::Waiting { not_before_ms } => store.schedule(held, not_before_ms, now_ms).await,
            To::Completed { at_ms } => store.complete(held, at_ms).await,
            To::Failed { at_ms, reason } => store.fail(held, reason, at_ms).await,
        }
        .map(Answer::Transition),
    };
    let answer = answer.expect("no faults of its own");
    let after = look().await.expect("no faults of its own");
    let told = match &answer {
        Answer::Claim(Claim::Claimed(_)) => "claimed".to_owned(),
        Answer::Claim(other) => format!("{other:?}"),
        Answer::Renewal(answer) => format!("{answer:?}"),
        Answer::Transition(answer) => format!("{answer:?}"),
    };
    scene.tell(
        &issued.who,
        &format!("store: {} -> {told}", issued.call.name()),
    );
    let at_ms = scene.at_ms();
    scene
        .oracle()
        .wrote(at_ms, issued, before.as_ref(), after.as_ref());
    answer
}

/// Enough of a token to tell it from others.
pub(crate) fn short(token: Uuid) -> String {
    let hex = token.simple().to_string();
    hex.get(26..).unwrap_or_default().to_owned()
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("simulated".to_owned())
}
