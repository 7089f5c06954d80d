//! `fencepost destinations list | pause | resume`.

use crate::{
    args::{DestinationsCommand, PauseArgs},
    config::Loaded,
    failure::Failure,
    output::{plain, time},
    ports::{self, peek::Rows, standings::Book},
};
use dedup_store::{Noted, PauseCause, Standing, Standings};
use dispatcher::config::WhilePaused;
use serde_json::json;

/// Times that a change is tried against others who write.
const ROUNDS_MAX: u32 = 8;

/// Runs the command; what it prints.
///
/// # Errors
/// [`Failure::Config`] for a name that nobody knows, [`Failure::Unavailable`] when the store can not be reached.
pub(crate) async fn run(
    command: &DestinationsCommand,
    loaded: &Loaded,
    now_ms: i64,
) -> Result<String, Failure> {
    match command {
        DestinationsCommand::List { json } => {
            let rows = ports::peek::open_rows(&loaded.config.store, &loaded.base).await?;
            list(&rows, loaded, *json).await
        }
        DestinationsCommand::Pause(args) => pause(args, loaded, now_ms).await,
        DestinationsCommand::Resume { name } => resume(name, loaded, now_ms).await,
    }
}

async fn list(rows: &Rows, loaded: &Loaded, json: bool) -> Result<String, Failure> {
    let mut standings = rows.standings().await?;
    let configured = &loaded.config.destinations;
    // What was noted of a destination that is not configured any more matters only while it would be paused again.
    standings.retain(|name, standing| configured.contains_key(name) || standing.paused.is_some());
    for name in configured.keys() {
        standings.entry(name.clone()).or_default();
    }
    let is_configured = |name: &str| configured.contains_key(name);
    if json {
        let lines = standings.iter();
        let lines =
            lines.map(|(name, standing)| standing_json(name, standing, is_configured(name)));
        return Ok(lines.collect());
    }
    Ok(table(&standings, is_configured))
}

async fn pause(args: &PauseArgs, loaded: &Loaded, now_ms: i64) -> Result<String, Failure> {
    let PauseArgs { name, note } = args;
    let Some(destination) = loaded.config.destinations.get(name) else {
        return Err(unknown(name, loaded.config.destinations.keys()));
    };
    let book = ports::standings::open(&loaded.config.store, &loaded.base).await?;
    let (standing, changed) = change(&book, name, |seen| {
        let note = note.as_deref().unwrap_or_default();
        seen.paused
            .is_none()
            .then(|| seen.pause(now_ms, PauseCause::Manual, note))
    })
    .await?;
    if let (false, Some(paused)) = (changed, &standing.paused) {
        let (since, cause) = (time(paused.at_ms), paused.cause.as_str());
        return Ok(format!("{name} is paused since {since} ({cause})\n"));
    }
    let meanwhile = match destination.pause.deliveries {
        WhilePaused::Wait => "its deliveries wait until they are too old",
        WhilePaused::DeadLetter => "its deliveries go to the dead letters",
    };
    Ok(format!(
        "{name} is paused: {meanwhile}. Dispatchers follow within 10 s\n"
    ))
}

async fn resume(name: &str, loaded: &Loaded, now_ms: i64) -> Result<String, Failure> {
    let book = ports::standings::open(&loaded.config.store, &loaded.base).await?;
    let standings = book.standings().await?;
    let configured = &loaded.config.destinations;
    if !configured.contains_key(name) && !standings.contains_key(name) {
        return Err(unknown(name, configured.keys().chain(standings.keys())));
    }
    let (_, changed) = change(&book, name, |seen| {
        let begun = seen.paused.is_some() || seen.failing_since_ms.is_some();
        begun.then(|| seen.resume(now_ms))
    })
    .await?;
    Ok(if changed {
        format!(
            "{name} is resumed. Dispatchers follow within 10 s; what waits comes within 10 min\n"
        )
    } else {
        format!("{name} is not paused\n")
    })
}

/// Changes how a destination stands, if `step` wants it; whether it was changed.
async fn change(
    book: &Book,
    name: &str,
    step: impl Fn(&Standing) -> Option<Standing>,
) -> Result<(Standing, bool), Failure> {
    for _ in 0..ROUNDS_MAX {
        let seen = book.standings().await?.remove(name).unwrap_or_default();
        let Some(new) = step(&seen) else {
            return Ok((seen, false));
        };
        if book.set(name, &new).await? == Noted::Written {
            return Ok((new, true));
        }
    }
    Err(Failure::Unavailable(format!(
        "others kept writing how {name} stands; try again"
    )))
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Failure {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    known.dedup();
    let known = if known.is_empty() {
        "none is".to_owned()
    } else {
        known.join(", ")
    };
    let name = plain(name);
    Failure::config(
        format!("destinations.{name}"),
        format!("is not configured; known: {known}"),
    )
}

fn state(standing: &Standing) -> &'static str {
    match standing {
        Standing {
            paused: Some(_), ..
        } => "paused",
        Standing {
            failing_since_ms: Some(_),
            ..
        } => "failing",
        Standing { .. } => "active",
    }
}

fn standing_json(name: &str, standing: &Standing, configured: bool) -> String {
    let paused = standing.paused.as_ref();
    let line = json!({
        "destination": name,
        "configured": configured,
        "state": state(standing),
        "paused_at": paused.map(|paused| time(paused.at_ms)),
        "cause": paused.map(|paused| paused.cause.as_str()),
        "note": paused.map(|paused| &paused.note),
        "failing_since": standing.failing_since_ms.map(time),
        "resumed_at": standing.resumed_at_ms.map(time),
    });
    format!("{line}\n")
}

fn table(standings: &Standings, is_configured: impl Fn(&str) -> bool) -> String {
    let dash = || "-".to_owned();
    let head = [
        "DESTINATION",
        "STATE",
        "PAUSED AT",
        "CAUSE",
        "FAILING SINCE",
        "NOTE",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    for (name, standing) in standings {
        let paused = standing.paused.as_ref();
        let mut state = state(standing).to_owned();
        if !is_configured(name) {
            state.push_str(", not configured");
        }
        lines.push([
            plain(name),
            state,
            paused.map_or_else(dash, |paused| time(paused.at_ms)),
            paused.map_or_else(dash, |paused| paused.cause.as_str().to_owned()),
            standing.failing_since_ms.map_or_else(dash, time),
            paused
                .map(|paused| plain(&paused.note))
                .filter(|note| !note.is_empty())
                .unwrap_or_else(dash),
        ]);
    }
    let mut widths = [0; 6];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_says_what_is_not_configured() {
        let paused = Standing::default().failing(Some(0)).pause(
            1_000,
            PauseCause::Failing,
            "http status 503",
        );
        let standings = Standings::from([
            ("a".to_owned(), Standing::default()),
            ("billing".to_owned(), paused),
            (
                "old".to_owned(),
                Standing::default().pause(0, PauseCause::Manual, ""),
            ),
        ]);
        let expected = "\
DESTINATION  STATE                   PAUSED AT             CAUSE    FAILING SINCE         NOTE
a            active                  -                     -        -                     -
billing      paused                  1970-01-01T00:00:01Z  failing  1970-01-01T00:00:00Z  http status 503
old          paused, not configured  1970-01-01T00:00:00Z  manual   -                     -
";
        assert_eq!(table(&standings, |name| name != "old"), expected);
    }

    #[test]
    fn a_name_that_nobody_knows_is_told_with_those_that_are_known() {
        let known = ["b".to_owned(), "a".to_owned(), "b".to_owned()];
        let told = unknown("x\u{1b}", known.iter()).to_string();
        assert_eq!(told, "destinations.x : is not configured; known: a, b");
    }
}
