//! How destinations stand, in SQLite.

use crate::standing::{self, Noted, PauseCause, Paused, STANDINGS_MAX, Standing, Standings, Turn};
use rusqlite::{Connection, OptionalExtension, params};

const ALL: &str = "
    SELECT revision, failing_since, paused_at, cause, note, resumed_at, destination
    FROM standings ORDER BY destination LIMIT ?1";

const ONE: &str = "
    SELECT revision, failing_since, paused_at, cause, note, resumed_at
    FROM standings WHERE destination = ?1";

const PUT: &str = "
    REPLACE INTO standings (destination, revision, failing_since, paused_at, cause, note, resumed_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// Every one of them.
pub(super) fn all(connection: &Connection) -> rusqlite::Result<Standings> {
    let mut all = connection.prepare(ALL)?;
    let rows = all.query_map([i64::try_from(STANDINGS_MAX).unwrap_or(i64::MAX)], |row| {
        Ok((row.get(6)?, read(row)?))
    })?;
    rows.collect()
}

/// Compare and set. Only inside a transaction.
pub(super) fn set(
    connection: &Connection,
    destination: &str,
    new: &Standing,
) -> rusqlite::Result<Noted> {
    let mut one = connection.prepare(ONE)?;
    let row = one.query_row([destination], read).optional()?;
    if let Turn::Answer(noted) = standing::turn(row.as_ref(), new) {
        return Ok(noted);
    }
    let paused = new.paused.as_ref();
    connection.prepare(PUT)?.execute(params![
        destination,
        new.revision,
        new.failing_since_ms,
        paused.map(|paused| paused.at_ms),
        paused.map(|paused| paused.cause.as_str()),
        paused.map(|paused| paused.note.as_str()),
        new.resumed_at_ms,
    ])?;
    Ok(Noted::Written)
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Standing> {
    let paused = match row.get(2)? {
        None => None,
        Some(at_ms) => Some(Paused {
            at_ms,
            cause: PauseCause::parse(&row.get::<_, Option<String>>(3)?.unwrap_or_default()),
            note: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
        }),
    };
    Ok(Standing {
        revision: row.get(0)?,
        failing_since_ms: row.get(1)?,
        paused,
        resumed_at_ms: row.get(5)?,
    })
}
