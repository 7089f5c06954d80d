//! A row as the server shows it, and what it means.
//!
//! The answer to a conditional statement has another shape on every server: Cassandra answers an applied one with
//! `[applied]` alone and a refused one with the columns of the IF clause in its order, ScyllaDB always with those columns
//! in the table's order, and a missing row is either nulls or nothing. So columns are found by name and none is required.
//!
//! # Which columns count
//!
//! No null is ever bound (it would be a tombstone), so a column that means nothing in the row's state is left as it
//! was: a row that was waiting and is claimed again still shows its old `not_before`. Therefore `not_before` is read
//! only in `waiting`, `reason` and `failed_at` only in `failed`, `completed_at` only in `completed`. Each is written by
//! every write into its own state, so what is read is never stale.

use crate::{
    StoreError,
    claim::{Row, Status},
};
use schemas::Reason;
use scylla::value::CqlValue;
use uuid::Uuid;

/// The columns that a server showed; each may be missing or null.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) status: Option<i8>,
    pub(super) claim_token: Option<Uuid>,
    pub(super) lease_until_ms: Option<i64>,
    attempts: Option<i32>,
    generation: Option<i32>,
    not_before_ms: Option<i64>,
    reason: Option<String>,
    created_at_ms: Option<i64>,
    completed_at_ms: Option<i64>,
    failed_at_ms: Option<i64>,
}

/// The answer to a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// `[applied]`, when there is such a column.
    pub(super) applied: Option<bool>,
    /// The other columns.
    pub(super) seen: Seen,
}

// === impl Answer ===

impl Answer {
    /// Reads one row of a result, whatever columns it has and in whatever order.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when a column has another type than the table's.
    pub(super) fn read<'a>(
        columns: impl IntoIterator<Item = (&'a str, Option<CqlValue>)>,
    ) -> Result<Self, StoreError> {
        let mut answer = Self::default();
        for (name, value) in columns {
            let Some(value) = value else { continue };
            if !answer.put(name, &value) {
                return Err(StoreError::Refused(format!(
                    "column {name} is not of the type that `fencepost store migrate` gives it"
                )));
            }
        }
        Ok(answer)
    }

    /// Whether the value was of the column's type. Unknown columns are passed over.
    fn put(&mut self, name: &str, value: &CqlValue) -> bool {
        let millis = |value: &CqlValue| value.as_cql_timestamp().map(|at| at.0);
        let seen = &mut self.seen;
        match name {
            "[applied]" => set(&mut self.applied, value.as_boolean()),
            "status" => set(&mut seen.status, value.as_tinyint()),
            "claim_token" => set(&mut seen.claim_token, value.as_uuid()),
            "lease_until" => set(&mut seen.lease_until_ms, millis(value)),
            "attempts" => set(&mut seen.attempts, value.as_int()),
            "generation" => set(&mut seen.generation, value.as_int()),
            "not_before" => set(&mut seen.not_before_ms, millis(value)),
            "reason" => set(&mut seen.reason, value.as_text().cloned()),
            "created_at" => set(&mut seen.created_at_ms, millis(value)),
            "completed_at" => set(&mut seen.completed_at_ms, millis(value)),
            "failed_at" => set(&mut seen.failed_at_ms, millis(value)),
            _ => true,
        }
    }
}

// === impl Seen ===

impl Seen {
    /// The row that this means; none when there is no row, or only what an expiry left of one.
    ///
    /// A row without status, or an open one (processing, waiting) that lacks a column of its claim, counts as absent. An
    /// ended one (completed, failed) counts whatever it lacks: that it ended is all that matters, and forgetting it would
    /// deliver again.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a status that this version does not know.
    pub(super) fn row(&self) -> Result<Option<Row>, StoreError> {
        let Some(code) = self.status else {
            return Ok(None);
        };
        let status = Status::from_code(code).ok_or_else(|| {
            StoreError::Refused(format!(
                "status {code} is unknown; a newer version wrote this row"
            ))
        })?;
        let whole = self.claim_token.is_some()
            && self.lease_until_ms.is_some()
            && self.attempts.is_some()
            && self.generation.is_some()
            && self.created_at_ms.is_some();
        if !whole && matches!(status, Status::Processing | Status::Waiting) {
            return Ok(None);
        }
        let in_state = |column: Option<i64>, of: Status| column.filter(|_| status == of);
        Ok(Some(Row {
            status,
            claim_token: self.claim_token.unwrap_or_default(),
            lease_until_ms: self.lease_until_ms.unwrap_or(0),
            attempts: u32::try_from(self.attempts.unwrap_or(0)).unwrap_or(0),
            generation: u32::try_from(self.generation.unwrap_or(0)).unwrap_or(0),
            not_before_ms: in_state(self.not_before_ms, Status::Waiting),
            reason: self
                .reason
                .as_deref()
                .filter(|_| status == Status::Failed)
                .map(Reason::parse),
            created_at_ms: self.created_at_ms.unwrap_or(0),
            completed_at_ms: in_state(self.completed_at_ms, Status::Completed),
            failed_at_ms: in_state(self.failed_at_ms, Status::Failed),
        }))
    }
}

impl From<&Row> for Seen {
    /// What a server would show of `row`, as far as a compare-and-set and [`Self::row`] ask.
    fn from(row: &Row) -> Self {
        Self {
            status: Some(row.status.code()),
            claim_token: Some(row.claim_token),
            lease_until_ms: Some(row.lease_until_ms),
            attempts: Some(i32::try_from(row.attempts).unwrap_or(i32::MAX)),
            generation: Some(i32::try_from(row.generation).unwrap_or(i32::MAX)),
            not_before_ms: row.not_before_ms,
            reason: row.reason.map(|reason| reason.as_str().to_owned()),
            created_at_ms: Some(row.created_at_ms),
            completed_at_ms: row.completed_at_ms,
            failed_at_ms: row.failed_at_ms,
        }
    }
}

fn set<T>(column: &mut Option<T>, value: Option<T>) -> bool {
    *column = value;
    column.is_some()
}

#[cfg(test)]
mod tests {
    use super::{Answer, Seen};
    use crate::claim::{Row, Status};
    use schemas::Reason;
    use scylla::value::{CqlTimestamp, CqlValue};
    use uuid::Uuid;

    const TOKEN: Uuid = Uuid::from_u128(7);

    fn at(ms: i64) -> Option<CqlValue> {
        Some(CqlValue::Timestamp(CqlTimestamp(ms)))
    }

    fn applied(applied: bool) -> (&'static str, Option<CqlValue>) {
        ("[applied]", Some(CqlValue::Boolean(applied)))
    }

    /// Every column set, as after a life through all states.
    fn columns(status: Status) -> Vec<(&'static str, Option<CqlValue>)> {
        vec![
            ("status", Some(CqlValue::TinyInt(status.code()))),
            ("claim_token", Some(CqlValue::Uuid(TOKEN))),
            ("lease_until", at(500)),
            ("attempts", Some(CqlValue::Int(3))),
            ("generation", Some(CqlValue::Int(1))),
            ("not_before", at(600)),
            ("reason", Some(CqlValue::Text("exhausted".to_owned()))),
            ("created_at", at(100)),
            ("completed_at", at(700)),
            ("failed_at", at(800)),
        ]
    }

    fn row(status: Status) -> Row {
        Row {
            status,
            claim_token: TOKEN,
            lease_until_ms: 500,
            attempts: 3,
            generation: 1,
            not_before_ms: None,
            reason: None,
            created_at_ms: 100,
            completed_at_ms: None,
            failed_at_ms: None,
        }
    }

    #[test]
    fn columns_of_other_states_are_ignored() {
        let read = |status| {
            Answer::read(columns(status))
                .unwrap()
                .seen
                .row()
                .unwrap()
                .unwrap()
        };
        assert_eq!(read(Status::Processing), row(Status::Processing));
        let waiting = Row {
            not_before_ms: Some(600),
            ..row(Status::Waiting)
        };
        assert_eq!(read(Status::Waiting), waiting);
        let completed = Row {
            completed_at_ms: Some(700),
            ..row(Status::Completed)
        };
        assert_eq!(read(Status::Completed), completed);
        let failed = Row {
            failed_at_ms: Some(800),
            reason: Some(Reason::Exhausted),
            ..row(Status::Failed)
        };
        assert_eq!(read(Status::Failed), failed);
    }

    #[test]
    fn any_column_order_reads_the_same() {
        let mut cassandra = vec![applied(false)];
        cassandra.extend(columns(Status::Waiting));
        let expected = Answer::read(cassandra.clone()).unwrap();
        for turn in 0..cassandra.len() {
            let mut turned = cassandra.clone();
            turned.rotate_left(turn);
            assert_eq!(Answer::read(turned.clone()).unwrap(), expected);
            turned.reverse();
            assert_eq!(Answer::read(turned).unwrap(), expected);
        }
    }

    #[test]
    fn documented_shapes_of_both_servers() {
        // Cassandra, applied: one column. ScyllaDB, applied: the old values beside it.
        assert_eq!(Answer::read([applied(true)]).unwrap().applied, Some(true));
        let mut scylla = vec![applied(true)];
        scylla.extend(
            columns(Status::Processing)
                .into_iter()
                .map(|(name, _)| (name, None)),
        );
        assert_eq!(Answer::read(scylla).unwrap().applied, Some(true));
        // A missing row, not applied: `[applied]` alone on Cassandra, nulls on ScyllaDB.
        let missing = Answer {
            applied: Some(false),
            seen: Seen::default(),
        };
        assert_eq!(Answer::read([applied(false)]).unwrap(), missing);
        let nulls = [
            applied(false),
            ("claim_token", None),
            ("lease_until", None),
            ("status", None),
        ];
        assert_eq!(Answer::read(nulls).unwrap(), missing);
        assert_eq!(missing.seen.row(), Ok(None));
        // With the whole key, as IF NOT EXISTS and batches answer.
        let keyed = [
            applied(false),
            ("source", Some(CqlValue::Text("github".to_owned()))),
        ];
        assert_eq!(Answer::read(keyed).unwrap(), missing);
    }

    #[test]
    fn half_expired_rows() {
        let without = |status, gone: &str| {
            let columns = columns(status)
                .into_iter()
                .filter(|(name, _)| *name != gone);
            Answer::read(columns).unwrap().seen.row().unwrap()
        };
        for gone in [
            "status",
            "claim_token",
            "lease_until",
            "attempts",
            "generation",
            "created_at",
        ] {
            assert_eq!(without(Status::Processing, gone), None, "{gone}");
            assert_eq!(without(Status::Waiting, gone), None, "{gone}");
        }
        assert!(without(Status::Waiting, "not_before").is_some());
        // Ended is ended: forgetting it would deliver again.
        assert_eq!(
            without(Status::Completed, "claim_token").unwrap().status,
            Status::Completed
        );
        assert_eq!(
            without(Status::Failed, "created_at").unwrap().status,
            Status::Failed
        );
    }

    #[test]
    fn foreign_data_is_refused() {
        assert!(Answer::read([("attempts", Some(CqlValue::Text("3".to_owned())))]).is_err());
        let newer = Answer::read([("status", Some(CqlValue::TinyInt(9)))]).unwrap();
        assert!(newer.seen.row().is_err());
    }
}
