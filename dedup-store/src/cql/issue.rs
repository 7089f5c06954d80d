//! Issuing one statement until its outcome is known.

use super::{fault, fault::Fault, seen::Answer, statement::Values};
use crate::StoreError;
use scylla::{
    client::session::Session, errors::ExecutionError, response::query_result::QueryRowsResult,
    statement::prepared::PreparedStatement, value::Row,
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

/// Makes what is wanted of the rows of an answer.
pub(super) type Parse<T> = fn(&QueryRowsResult) -> Result<T, StoreError>;

/// One try.
enum Tried<T> {
    Answered(T),
    Failed(Box<ExecutionError>),
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
        let writing = TooLate::of("writing");
        self.issue(statement, values, deadline, writing, first_row)
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
        self.read_all(statement, values, deadline, first_row).await
    }

    /// The same for a read of many rows.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn read_all<T>(
        &self,
        statement: &PreparedStatement,
        values: &Values,
        deadline: Instant,
        parse: Parse<T>,
    ) -> Result<T, StoreError> {
        self.issue(statement, values, deadline, TooLate::of("reading"), parse)
            .await
    }

    async fn issue<T>(
        &self,
        statement: &PreparedStatement,
        values: &Values,
        deadline: Instant,
        mut last: TooLate,
        parse: Parse<T>,
    ) -> Result<T, StoreError> {
        loop {
            let permit = turn(&self.permits, deadline, &last).await?;
            let tried =
                tokio::time::timeout_at(deadline, self.once(statement, values, parse)).await;
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

    async fn once<T>(
        &self,
        statement: &PreparedStatement,
        values: &Values,
        parse: Parse<T>,
    ) -> Tried<T> {
        let result = match Box::pin(self.session.execute_unpaged(statement, values)).await {
            Ok(result) => result,
            Err(error) => return Tried::Failed(Box::new(error)),
        };
        let rows = result
            .into_rows_result()
            .map_err(|error| unreadable(&error));
        match rows.and_then(|rows| parse(&rows)) {
            Ok(answer) => Tried::Answered(answer),
            Err(error) => Tried::Unreadable(error),
        }
    }
}

/// The first row of an answer, by the names of its columns.
fn first_row(rows: &QueryRowsResult) -> Result<Answer, StoreError> {
    let row = rows
        .maybe_first_row::<Row>()
        .map_err(|error| unreadable(&error))?;
    let names = rows.column_specs();
    let names = names.iter().map(|column| column.name());
    let values = row.map(|row| row.columns).unwrap_or_default();
    Answer::read(names.zip(values))
}

pub(super) fn unreadable(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Refused(format!("can not read the answer: {error}"))
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
