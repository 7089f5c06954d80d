//! Asking for redeliveries, one after the other.

use super::{
    Run, Target,
    api::ApiError,
    plan::Ask,
    report::{self, Fate, Figures},
};
use crate::{failure::Failure, output::complain};

/// Requests without an answer, one after the other, after which no more are sent.
const UNANSWERED_MAX: u32 = 3;

// === impl Run ===

impl Run<'_> {
    /// Asks for one after the other. A failure that the next one would meet too ends it.
    pub(super) async fn ask_all(
        &mut self,
        target: &Target<'_>,
        asks: &[Ask],
        figures: &mut Figures,
    ) -> Result<(), Failure> {
        let (mut unanswered, mut stopped) = (0, false);
        for (at, ask) in asks.iter().enumerate() {
            self.progress.at(at as u64, asks.len() as u64, "asking");
            let (fate, cause) = if stopped {
                (Fate::Left, String::new())
            } else if self.args.dry_run {
                (Fate::WouldAsk, String::new())
            } else {
                self.ask(target, ask).await?
            };
            match fate {
                Fate::Unanswered => unanswered += 1,
                Fate::Asked | Fate::WouldAsk | Fate::Refused | Fate::Left => unanswered = 0,
            }
            if !stopped && (fate == Fate::Left || unanswered == UNANSWERED_MAX) {
                let line = format!("{}: asking ends: {cause}", target.name);
                self.progress.aside(|| complain(&line));
                stopped = true;
            }
            figures.count(fate);
            let hook = target
                .hooks
                .get(ask.attempt.hook)
                .map_or("", String::as_str);
            let line = if self.args.json {
                report::ask_json(target.name, hook, ask, fate, &cause)
            } else {
                report::ask_text(target.name, hook, ask, fate, &cause)
            };
            self.say(&line)?;
        }
        Ok(())
    }

    /// The order matters: noted before it is asked for, and forgotten only when it was certainly not.
    async fn ask(&mut self, target: &Target<'_>, ask: &Ask) -> Result<(Fate, String), Failure> {
        let Some(hook) = target.hooks.get(ask.attempt.hook) else {
            return Ok((Fate::Refused, "no such hook".to_owned()));
        };
        self.pace.tick().await;
        self.state
            .note(target.name, &ask.guid, self.clock.now_ms())?;
        let error = match target.api.redeliver(hook, ask.attempt.id).await {
            Ok(()) => return Ok((Fate::Asked, String::new())),
            Err(error) => error,
        };
        let fate = match &error {
            // Sent, and nobody knows whether it was obeyed.
            ApiError::Unanswered(_) | ApiError::Malformed(_) => Fate::Unanswered,
            // Gone, or too old: the next one may be there.
            ApiError::Refused { status, .. }
                if matches!(status.as_u16(), 400 | 404 | 410 | 422) =>
            {
                Fate::Refused
            }
            ApiError::Refused { .. }
            | ApiError::Limited { .. }
            | ApiError::Down(_)
            | ApiError::Token => Fate::Left,
        };
        if fate != Fate::Unanswered {
            self.state.forget(target.name, &ask.guid)?;
        }
        Ok((fate, error.to_string()))
    }
}
