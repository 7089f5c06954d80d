//! Issuing one statement until its outcome is known.

use super::{fault, fault::Fault, seen::Answer, statement::Values, turns::Turns};
use crate::{Load, StoreError};
use scylla::{
    client::session::Session, errors::ExecutionError, response::query_result::QueryRowsResult,
    statement::prepared::PreparedStatement, value::Row,
};
use std::time::Duration;
use tokio::time::Instant;

/// Pause before a statement is issued again, milliseconds: short against a lease, long enough that two ballots part.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 20..=100;
/// The pause doubles so often while there is no answer, to a second or so: a cluster without a quorum answers at once that it
/// has none, and must find the time to get well.
const PAUSE_DOUBLINGS_MAX: u32 = 4;

/// The session, with a limit on what is in flight.
#[derive(Debug)]
pub(super) struct Issuer {
    session: Session,
    turns: Turns,
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
    pub(super) fn new(session: Session, turns: Turns) -> Self {
        Self { session, turns }
    }

    pub(super) fn load(&self) -> Load {
        self.turns.load()
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
        for tries in 0_u32.. {
            if tries > 0 {
                self.turns.again();
            }
            let permit = self.turns.next(deadline, &last).await?;
            let tried =
                tokio::time::timeout_at(deadline, self.once(statement, values, parse)).await;
            drop(permit);
            match tried {
                Err(_elapsed) => {
                    last.in_doubt();
                    return Err(last.unavailable());
                }
                Ok(Tried::Answered(answer)) => return Ok(answer),
                Ok(Tried::Unreadable(error)) => return Err(error),
                Ok(Tried::Failed(error)) => match fault::of(&error) {
                    Fault::Refused => return Err(StoreError::Refused(error.to_string())),
                    Fault::NotStarted => last.note(&error),
                    Fault::Unknown => {
                        last.in_doubt();
                        last.note(&error);
                    }
                },
            }
            let paused = tokio::time::timeout_at(deadline, pause(tries)).await;
            if paused.is_err() {
                break;
            }
        }
        Err(last.unavailable())
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

    /// From now on a statement may have been executed.
    pub(super) fn in_doubt(&mut self) {
        self.in_doubt = true;
    }

    /// No turn came in time. What an earlier statement ended with says more.
    pub(super) fn without_turn(mut self) -> Self {
        if self.last.is_none() {
            let why = "nothing was sent, `in_flight_max` statements are in flight already";
            self.last = Some(why.to_owned());
        }
        self
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

/// Waits a little, at random, and longer after more `tries`.
pub(super) async fn pause(tries: u32) {
    tokio::time::sleep(pause_of(tries, rand::random_range(PAUSE_MS))).await;
}

fn pause_of(tries: u32, first_ms: u64) -> Duration {
    Duration::from_millis(first_ms << tries.min(PAUSE_DOUBLINGS_MAX))
}

#[cfg(test)]
mod tests {
    use super::{PAUSE_MS, pause_of};
    use std::time::Duration;

    #[test]
    fn pauses_grow_to_about_a_second_and_no_further() {
        let [first, last] = [*PAUSE_MS.start(), *PAUSE_MS.end()];
        assert_eq!(pause_of(0, first), Duration::from_millis(20));
        assert_eq!(pause_of(1, last), Duration::from_millis(200));
        for tries in [4, 5, u32::MAX] {
            assert_eq!(pause_of(tries, first), Duration::from_millis(320));
            assert_eq!(pause_of(tries, last), Duration::from_millis(1_600));
        }
    }
}
