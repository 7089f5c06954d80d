//! The heart: what follows from an outcome. Total, without a clock, without a dice.

use crate::{config::RetryConfig, outcome::Outcome};
use schemas::{DelayTier, OutcomeKind, Reason};
use std::time::Duration;

/// What follows from an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Delivered: the claim is completed.
    Complete,
    /// Try again, not before this time, milliseconds since the Unix epoch. Jitter is in it.
    Retry { not_before_ms: i64 },
    /// Given up.
    DeadLetter { reason: Reason },
}

/// The delivery as far as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Number of the attempt that was made (or would be made), from 1.
    pub attempt: u32,
    /// The webhook's receipt, milliseconds since the Unix epoch.
    pub received_at_ms: i64,
}

/// Decides before an attempt, when the claim is won: a delivery that used up its attempts or its age is given up
/// without another try, so that one that kills its dispatcher ends too.
pub fn before_attempt(standing: Standing, retry: &RetryConfig, now_ms: i64) -> Option<Reason> {
    if standing.attempt > retry.attempts_max {
        Some(Reason::Exhausted)
    } else if now_ms > deadline_ms(standing, retry) {
        Some(Reason::Expired)
    } else {
        None
    }
}

/// Decides after an attempt. `jitter` is drawn from 0 to 1; `retry_after_max` bounds the receiver's wish.
pub fn after_attempt(
    standing: Standing,
    outcome: &Outcome,
    retry: &RetryConfig,
    retry_after_max: Duration,
    now_ms: i64,
    jitter: f64,
) -> Decision {
    match outcome.kind {
        OutcomeKind::Delivered => return Decision::Complete,
        OutcomeKind::Rejected => {
            return Decision::DeadLetter {
                reason: Reason::Rejected,
            };
        }
        OutcomeKind::Gone => {
            return Decision::DeadLetter {
                reason: Reason::Gone,
            };
        }
        OutcomeKind::Blocked => {
            return Decision::DeadLetter {
                reason: Reason::Blocked,
            };
        }
        OutcomeKind::Throttled
        | OutcomeKind::Failed
        | OutcomeKind::Interrupted
        | OutcomeKind::Unknown => {}
    }
    if standing.attempt >= retry.attempts_max {
        return Decision::DeadLetter {
            reason: Reason::Exhausted,
        };
    }
    // Retry-After only lengthens a wait; it may go past the backoff's own cap.
    let wished = outcome.retry_after.unwrap_or_default().min(retry_after_max);
    let wait = backoff(standing.attempt, retry, jitter).max(wished);
    let not_before_ms = now_ms.saturating_add(millis(wait));
    if not_before_ms > deadline_ms(standing, retry) {
        return Decision::DeadLetter {
            reason: Reason::Expired,
        };
    }
    Decision::Retry { not_before_ms }
}

/// The wait after attempt number `attempt`: `base * factor^(attempt-1)`, at most `cap`, plus `jitter` (0 to 1) of the
/// policy's jitter part. Never below the smallest delay tier.
pub fn backoff(attempt: u32, retry: &RetryConfig, jitter: f64) -> Duration {
    let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
    let cap_s = retry.cap.as_secs_f64();
    let wait_s = (retry.base.as_secs_f64() * retry.factor.powi(exponent)).min(cap_s);
    let wait_s = if wait_s.is_finite() { wait_s } else { cap_s };
    let jitter = if jitter.is_finite() {
        jitter.clamp(0.0, 1.0)
    } else {
        0.0
    };
    let wait_s = wait_s * (1.0 + retry.jitter * jitter);
    let wait = Duration::try_from_secs_f64(wait_s).unwrap_or(retry.cap);
    wait.max(DelayTier::SMALLEST.wait())
}

fn deadline_ms(standing: Standing, retry: &RetryConfig) -> i64 {
    standing
        .received_at_ms
        .saturating_add(millis(retry.max_age))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{of_status, without_answer};
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(24 * 3_600);

    fn failed() -> Outcome {
        without_answer(OutcomeKind::Failed, "connect")
    }

    fn at(attempt: u32) -> Standing {
        Standing {
            attempt,
            received_at_ms: 1_000,
        }
    }

    #[test]
    fn permanent_outcomes_end_at_once() {
        let retry = RetryConfig::default();
        for (status, decision) in [
            (204, Decision::Complete),
            (
                404,
                Decision::DeadLetter {
                    reason: Reason::Rejected,
                },
            ),
            (
                301,
                Decision::DeadLetter {
                    reason: Reason::Rejected,
                },
            ),
            (
                410,
                Decision::DeadLetter {
                    reason: Reason::Gone,
                },
            ),
        ] {
            let outcome = of_status(status, None, &[], 0);
            assert_eq!(
                after_attempt(at(1), &outcome, &retry, DAY, 2_000, 0.5),
                decision
            );
        }
        let blocked = without_answer(OutcomeKind::Blocked, "loopback");
        assert_eq!(
            after_attempt(at(1), &blocked, &retry, DAY, 2_000, 0.5),
            Decision::DeadLetter {
                reason: Reason::Blocked
            }
        );
    }

    #[test]
    fn the_last_attempt_exhausts() {
        let retry = RetryConfig {
            attempts_max: 3,
            ..RetryConfig::default()
        };
        let decide = |attempt| after_attempt(at(attempt), &failed(), &retry, DAY, 2_000, 0.0);
        assert_eq!(
            decide(1),
            Decision::Retry {
                not_before_ms: 7_000
            }
        );
        assert_eq!(
            decide(2),
            Decision::Retry {
                not_before_ms: 17_000
            }
        );
        assert_eq!(
            decide(3),
            Decision::DeadLetter {
                reason: Reason::Exhausted
            }
        );
        assert_eq!(before_attempt(at(3), &retry, 2_000), None);
        assert_eq!(
            before_attempt(at(4), &retry, 2_000),
            Some(Reason::Exhausted)
        );
    }

    #[test]
    fn age_ends_a_delivery_at_its_edge() {
        let retry = RetryConfig {
            max_age: Duration::from_secs(60),
            ..RetryConfig::default()
        };
        assert_eq!(before_attempt(at(1), &retry, 61_000), None);
        assert_eq!(before_attempt(at(1), &retry, 61_001), Some(Reason::Expired));
        let decide = |now_ms| after_attempt(at(1), &failed(), &retry, DAY, now_ms, 0.0);
        assert_eq!(
            decide(56_000),
            Decision::Retry {
                not_before_ms: 61_000
            }
        );
        assert_eq!(
            decide(56_001),
            Decision::DeadLetter {
                reason: Reason::Expired
            }
        );
    }

    #[test]
    fn retry_after_only_lengthens_and_is_bounded() {
        let retry = RetryConfig::default();
        let decide = |seconds: &str, max| {
            let outcome = of_status(503, Some(seconds.as_bytes()), &[], 0);
            after_attempt(at(2), &outcome, &retry, max, 0, 0.0)
        };
        assert_eq!(
            decide("1", DAY),
            Decision::Retry {
                not_before_ms: 15_000
            }
        );
        assert_eq!(
            decide("60", DAY),
            Decision::Retry {
                not_before_ms: 60_000
            }
        );
        // Past the backoff's own cap of 6 h.
        assert_eq!(
            decide("36000", DAY),
            Decision::Retry {
                not_before_ms: 36_000_000
            }
        );
        assert_eq!(
            decide("999999", DAY),
            Decision::Retry {
                not_before_ms: 86_400_000
            }
        );
    }

    proptest! {
        #[test]
        fn waits_stay_between_base_and_cap(
            attempt in 1_u32..10_000,
            base_s in 5_u64..100,
            more_s in 0_u64..100_000,
            factor in 1.0_f64..10.0,
            part in 0.0_f64..=1.0,
            jitter in 0.0_f64..=1.0,
        ) {
            let retry = RetryConfig {
                base: Duration::from_secs(base_s),
                cap: Duration::from_secs(base_s + more_s),
                factor,
                jitter: part,
                ..RetryConfig::default()
            };
            let wait = backoff(attempt, &retry, jitter);
            prop_assert!(wait >= retry.base);
            prop_assert!(wait.as_secs_f64() <= retry.cap.as_secs_f64() * (1.0 + part) + 0.001);
            prop_assert!(backoff(attempt + 1, &retry, 0.0) >= backoff(attempt, &retry, 0.0));
        }

        #[test]
        fn attempts_and_age_are_never_passed(
            attempt in 1_u32..100,
            attempts_max in 1_u32..50,
            age_s in 0_i64..1_000_000,
            retry_after_s in proptest::option::of(0_u64..u64::MAX),
            jitter in 0.0_f64..=1.0,
        ) {
            let retry = RetryConfig { attempts_max, ..RetryConfig::default() };
            let outcome = Outcome { retry_after: retry_after_s.map(Duration::from_secs), ..failed() };
            let now_ms = 1_000 + age_s * 1_000;
            match after_attempt(at(attempt), &outcome, &retry, DAY, now_ms, jitter) {
                Decision::Retry { not_before_ms } => {
                    prop_assert!(attempt < attempts_max);
                    prop_assert!(not_before_ms >= now_ms + 5_000);
                    prop_assert!(not_before_ms <= 1_000 + 3 * 86_400_000);
                }
                Decision::DeadLetter { reason } => {
                    prop_assert!(matches!(reason, Reason::Exhausted | Reason::Expired));
                }
                Decision::Complete => prop_assert!(false, "a failure never completes"),
            }
        }
    }
}
