//! The section `destinations.<name>.pause`.

use super::{DURATION_MAX, DestinationConfig};
use runtime::Problem;
use serde::Deserialize;
use std::time::Duration;

/// `after` has room for at least so many attempts and their waits: fewer failures than that are no sign of anything.
const ROUNDS_MIN: u32 = 10;

/// `destinations.<name>.pause`: when a destination is left alone until somebody resumes it, and what becomes of its
/// deliveries meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PauseConfig {
    /// Paused when nothing but failures came of it for this long. Default: 5 days, as Svix does.
    #[serde(with = "humantime_serde")]
    pub after: Duration,
    /// Paused when it answers 410, which says that it does not want webhooks any more. Default: yes.
    pub on_gone: Option<bool>,
    /// What becomes of deliveries to a paused destination.
    pub deliveries: WhilePaused,
}

/// What becomes of deliveries to a paused destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhilePaused {
    /// They wait in the delay tiers, until it is resumed or they are too old.
    #[default]
    Wait,
    /// They are given up at once.
    DeadLetter,
}

// === impl PauseConfig ===

impl Default for PauseConfig {
    fn default() -> Self {
        Self {
            after: Duration::from_secs(5 * 24 * 3_600),
            on_gone: None,
            deliveries: WhilePaused::default(),
        }
    }
}

impl PauseConfig {
    /// Whether a 410 pauses.
    pub fn on_gone(&self) -> bool {
        self.on_gone.unwrap_or(true)
    }

    /// Mistakes in this policy of `destination`, under the key path `key`.
    pub fn check(&self, key: &str, destination: &DestinationConfig) -> Vec<Problem> {
        let mut problems = Vec::new();
        let round = destination.timeout.saturating_add(destination.retry.base);
        let needed = round.saturating_mul(ROUNDS_MIN);
        if self.after < needed {
            let message = format!(
                "must be at least {needed:?}, {ROUNDS_MIN} times `timeout` + `retry.base`: fewer attempts than that say nothing"
            );
            problems.push(Problem::new(format!("{key}.after"), message));
        }
        if self.after > DURATION_MAX {
            problems.push(Problem::new(
                format!("{key}.after"),
                "must be at most 365 days",
            ));
        }
        if self.on_gone == Some(true) && destination.retry_statuses.contains(&410) {
            problems.push(Problem::new(
                format!("{key}.on_gone"),
                "`retry_statuses` names 410, so it is retried and never pauses",
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_told_with_their_key() {
        let config = |pause: &str| -> DestinationConfig {
            let text = format!(
                "url = \"https://billing.example/\"\ntimeout = \"10s\"\nretry_statuses = [410]\npause = {{ {pause} }}\n"
            );
            runtime::config::read(Some(("test.toml".into(), text)), "", &[]).unwrap()
        };
        let keys = |pause: &str| {
            let problems = config(pause).check("destinations.billing");
            problems.into_iter().map(|it| it.key).collect::<Vec<_>>()
        };
        assert_eq!(keys(""), [""; 0]);
        // Ten times 10 s and the retry's 5 s.
        assert_eq!(keys("after = \"150s\""), [""; 0]);
        let after = ["destinations.billing.pause.after"];
        assert_eq!(keys("after = \"149s\""), after);
        assert_eq!(keys("after = \"366d\""), after);
        let on_gone = ["destinations.billing.pause.on_gone"];
        assert_eq!(keys("on_gone = true"), on_gone);
        assert_eq!(keys("on_gone = false"), [""; 0]);
        assert_eq!(
            config("deliveries = \"dead-letter\"").pause.deliveries,
            WhilePaused::DeadLetter
        );
    }
}
