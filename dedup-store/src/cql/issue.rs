//! Issuing one statement until its outcome is known.

use super::{fault, fault::Fault, seen::Answer, statement::Values};
use crate::StoreError;
use scylla::{
    client::session::Session, errors::ExecutionError, statement::prepared::PreparedStatement,
    value::Row,
};
use std::time::Duration;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// Pause before a statement is issued again, milliseconds: short against a lease, long enough that two ballots part.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 20..=100;

/// The session, with a limit on what is in flight.
#[derive(Debug)]
pub(super) struct Issuer {
    session: Session,
    permits: Semaphore,
}

/// One try.
enum Tried {
    Answered(Answer),
    Failed(ExecutionError),
    Unreadable(StoreError),
}

/// What is known when a deadline passes.
#[derive(Clone, Debug)]
pub(super) struct TooLate {
    doing: &'static str,
    /// Whether a statement may have been executed all the same.
    in_doubt: bool,
    last: Option<String>,
}

// === impl Issuer ===

impl Issuer {
    pub(super) fn new(session: Session, in_flight_max: usize) -> Self {
        let permits = in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            session,
            permits: Semaphore::new(permits),
        }
    }

    /// Issues the same conditional write with the same values until it is answered, refused, or `deadline` has passed.
    /// The caller recognises its own token in the answer: an earlier issue may have been applied.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] says whether the write may have happened.
    pub(super) async fn write(
        &self,
        statement: &PreparedStatement,
        values: &Values,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        self.issue(statement, values, deadline, TooLate::of("writing"))
            .await
    }

    /// The same for a read.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn read(
        &self,
        statement: &PreparedStatement,
        values: &Values,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        self.issue(statement, values, deadline, TooLate::of("reading"))
            .await
    }

    async fn issue(
        &self,
        statement: &PreparedStatement,
        values: &Values,
        deadline: Instant,
        mut last: TooLate,
    ) -> Result<Answer, StoreError> {
        loop {
            let permit = turn(&self.permits, deadline, &last).await?;
            let tried = tokio::time::timeout_at(deadline, self.once(statement, values)).await;
            drop(permit);
            match tried {
                Err(_elapsed) => {
                    last.in_doubt = true;
                    return Err(last.unavailable());
                }
                Ok(Tried::Answered(answer)) => return Ok(answer),
                Ok(Tried::Unreadable(error)) => return Err(error),
                Ok(Tried::Failed(error)) => match fault::of(&error) {
                    Fault::Refused => return Err(StoreError::Refused(error.to_string())),
                    Fault::NotStarted => last.note(&error),
                    Fault::Unknown => {
                        last.in_doubt = true;
                        last.note(&error);
                    }
                },
            }
            if tokio::time::timeout_at(deadline, pause()).await.is_err() {
                return Err(last.unavailable());
            }
        }
    }

    async fn once(&self, statement: &PreparedStatement, values: &Values) -> Tried {
        let result = match Box::pin(self.session.execute_unpaged(statement, values)).await {
            Ok(result) => result,
            Err(error) => return Tried::Failed(error),
        };
        let read = || {
            let rows = result
                .into_rows_result()
                .map_err(|error| error.to_string())?;
            let row = rows
                .maybe_first_row::<Row>()
                .map_err(|error| error.to_string())?;
            let names = rows.column_specs();
            let names = names.iter().map(|column| column.name());
            let values = row.map(|row| row.columns).unwrap_or_default();
            Ok::<_, String>(Answer::read(names.zip(values)))
        };
        match read() {
            Ok(Ok(answer)) => Tried::Answered(answer),
            Ok(Err(error)) => Tried::Unreadable(error),
            Err(cause) => Tried::Unreadable(StoreError::Refused(format!(
                "can not read the answer: {cause}"
            ))),
        }
    }
}

// === impl TooLate ===

impl TooLate {
    pub(super) fn of(doing: &'static str) -> Self {
        Self {
            doing,
            in_doubt: false,
            last: None,
        }
    }

    pub(super) fn note(&mut self, error: &dyn std::fmt::Display) {
        let error = error.to_string();
        tracing::debug!(
            error,
            in_doubt = self.in_doubt,
            "no answer from the store, asking again"
        );
        self.last = Some(error);
    }

    pub(super) fn unavailable(self) -> StoreError {
        let last = self.last.unwrap_or_else(|| "no answer".to_owned());
        let doubt = if self.in_doubt {
            " (it may have happened)"
        } else {
            ""
        };
        StoreError::Unavailable(format!("{} took too long{doubt}: {last}", self.doing))
    }
}

/// Waits a little, at random.
pub(super) async fn pause() {
    tokio::time::sleep(Duration::from_millis(rand::random_range(PAUSE_MS))).await;
}

/// Waits for the right to send a statement.
///
/// # Errors
/// [`StoreError::Unavailable`] when `deadline` passes first. Waiting sends nothing: what is in doubt is what `last` says.
async fn turn<'a>(
    permits: &'a Semaphore,
    deadline: Instant,
    last: &TooLate,
) -> Result<Option<SemaphorePermit<'a>>, StoreError> {
    match tokio::time::timeout_at(deadline, permits.acquire()).await {
        // Never closed; were it, the statement would go out without a limit, and be right all the same.
        Ok(permit) => Ok(permit.ok()),
        Err(_elapsed) => {
            let mut last = last.clone();
            if last.last.is_none() {
                let why = "nothing was sent, `in_flight_max` statements are in flight already";
                last.last = Some(why.to_owned());
            }
            Err(last.unavailable())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TooLate, turn};
    use crate::StoreError;
    use tokio::{sync::Semaphore, time::Instant};

    #[tokio::test]
    async fn waiting_for_a_turn_puts_nothing_in_doubt() {
        let permits = Semaphore::new(1);
        let mut last = TooLate::of("writing");
        let held = turn(&permits, Instant::now(), &last).await;
        assert!(held.as_ref().is_ok_and(Option::is_some), "{held:?}");
        let message = async |last: &TooLate| match turn(&permits, Instant::now(), last).await {
            Err(StoreError::Unavailable(message)) => message,
            other => panic!("{other:?}"),
        };
        let told = message(&last).await;
        assert!(told.contains("nothing was sent"), "{told}");
        assert!(!told.contains("may have happened"), "{told}");

        // What an earlier statement left in doubt stays so.
        last.in_doubt = true;
        last.note(&"no answer");
        let told = message(&last).await;
        assert!(told.contains("(it may have happened): no answer"), "{told}");
    }
}
