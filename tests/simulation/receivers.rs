//! The receivers: each attempt gets what the destination's mood has for it.

use crate::{
    plan::{ALWAYS, Mood},
    scene::{Life, Scene},
};
use dispatcher::{
    outcome::{Outcome, of_status, without_answer},
    send::{Attempt, Send},
};
use schemas::OutcomeKind;
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub(crate) struct SimSend {
    pub(crate) scene: Arc<Scene>,
    pub(crate) life: Life,
}

/// What an attempt meets.
#[derive(Clone, Copy, Debug)]
enum Meets {
    Status {
        status: u16,
        retry_after_s: Option<u64>,
    },
    Nothing,
    Refused,
}

/// Counts an attempt as running until it is dropped.
struct Running<'a> {
    send: &'a SimSend,
    destination: &'a str,
    bytes: usize,
}

// === impl SimSend ===

impl SimSend {
    fn meets(&self, destination: &str) -> Meets {
        let lot = &self.scene.lot;
        let status = |status| Meets::Status {
            status,
            retry_after_s: None,
        };
        let own = self.scene.plan.moods[destination];
        let mood = match self.scene.weather().mood {
            Some(mood) if destination != ALWAYS => mood,
            Some(_) | None => own,
        };
        match mood {
            Mood::Good => status(204),
            Mood::Flaky => match lot.below(8) {
                0 | 1 => status(500),
                2 => Meets::Refused,
                3 => Meets::Nothing,
                _ => status(200),
            },
            Mood::Throttling if lot.chance(0.6) => Meets::Status {
                status: lot.pick(&[429, 503]),
                retry_after_s: lot.pick(&[None, Some(1), Some(12), Some(40), Some(100_000)]),
            },
            Mood::Hanging if lot.chance(0.4) => Meets::Nothing,
            Mood::Dead => lot.pick(&[status(502), Meets::Refused, Meets::Nothing]),
            Mood::Refusing if lot.chance(0.4) => status(lot.pick(&[404, 301, 410])),
            Mood::Throttling | Mood::Hanging | Mood::Refusing => status(202),
        }
    }
}

impl Send for SimSend {
    async fn send(&self, attempt: Attempt<'_>) -> Outcome {
        self.life.step().await;
        let (scene, lot) = (&self.scene, &self.scene.lot);
        let meets = self.meets(attempt.destination);
        scene.tell(
            self.life.name(),
            &format!(
                "sends {}/{}/{} attempt {} {}: {meets:?}",
                attempt.webhook.source,
                attempt.webhook.delivery_id,
                attempt.destination,
                attempt.attempt,
                crate::store::short(attempt.token)
            ),
        );
        let at_ms = scene.at_ms();
        scene.oracle().sent(at_ms, &self.life, &attempt);
        let running = Running::new(self, &attempt);
        let timeout = scene.plan.destinations[attempt.destination].timeout;
        let takes = Duration::from_millis(lot.pick(&[1, 30, 200, 1_500]));
        let outcome = match meets {
            Meets::Nothing => {
                tokio::time::sleep(timeout).await;
                without_answer(OutcomeKind::Failed, "timeout")
            }
            Meets::Refused => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                without_answer(OutcomeKind::Failed, "connect: connection refused")
            }
            Meets::Status {
                status,
                retry_after_s,
            } => {
                tokio::time::sleep(takes.min(timeout)).await;
                let retry_after = retry_after_s.map(|seconds| seconds.to_string());
                let retry_after = retry_after.as_ref().map(String::as_bytes);
                of_status(status, retry_after, &[], self.life.clock().now_ms())
            }
        };
        drop(running);
        // It may have died while the receiver worked.
        self.life.step().await;
        let now_ms = self.life.clock().now_ms();
        scene.oracle().answered(attempt.token, &outcome, now_ms);
        outcome
    }
}

// === impl Running ===

impl<'a> Running<'a> {
    fn new(send: &'a SimSend, attempt: &Attempt<'a>) -> Self {
        let (destination, bytes) = (attempt.destination, attempt.webhook.body.len());
        send.scene.oracle().running(&send.life, destination, bytes);
        Self {
            send,
            destination,
            bytes,
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Self {
            send,
            destination,
            bytes,
        } = self;
        send.scene
            .oracle()
            .runs_no_more(&send.life, destination, *bytes);
    }
}
