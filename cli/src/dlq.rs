//! `fencepost dlq list`.

use crate::{
    args::ListArgs,
    config::Loaded,
    failure::Failure,
    output::{complain, plain, time},
    ports,
};
use humantime_serde::re::humantime;
use runtime::Clock;
use schemas::{AttemptSummary, DeadLetter, Reason, Topic};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};

/// Records of one page.
const PAGE_RECORDS: usize = 500;

/// Which dead letters are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Filter {
    reason: Option<Reason>,
    destination: Option<String>,
    source: Option<String>,
    since_ms: Option<i64>,
}

/// The latest dead letters, each once; at-least-once publishing may have left copies.
#[derive(Debug)]
struct Latest {
    limit: usize,
    by_time: BTreeMap<(i64, String), DeadLetter>,
    times: HashMap<String, i64>,
}

/// Dead letters as text, the latest first.
///
/// # Errors
/// [`Failure::Config`] when an argument makes no sense, [`Failure::Unavailable`] when the log can not be read.
pub(crate) async fn list(
    args: &ListArgs,
    loaded: &Loaded,
    clock: Clock,
) -> Result<String, Failure> {
    let filter = Filter::new(args, clock.now_ms())?;
    let log = ports::peek::open_log(&loaded.config.log, &loaded.base, clock).await?;
    let codec = ports::log::codec(&loaded.config.log);
    let mut latest = Latest::new(usize::try_from(args.limit).unwrap_or(usize::MAX));
    let mut undecodable = 0_u64;
    for partition in 0..log.partitions() {
        let mut from_offset = 0;
        loop {
            let page = log
                .read(Topic::DeadLetters, partition, from_offset, PAGE_RECORDS)
                .await?;
            for record in &page.records {
                match codec.decode_dead_letter(&record.value) {
                    Ok(letter) if filter.takes(&letter) => latest.add(letter),
                    Ok(_) => {}
                    Err(_) => undecodable += 1,
                }
            }
            // A page that does not move on would be read for ever.
            if page.at_end || page.next_offset <= from_offset {
                break;
            }
            from_offset = page.next_offset;
        }
    }
    if undecodable > 0 {
        complain(&format!(
            "{undecodable} records of the topic are no dead letters"
        ));
    }
    Ok(latest
        .letters()
        .map(if args.json { letter_json } else { letter_text })
        .collect())
}

// === impl Filter ===

impl Filter {
    fn new(args: &ListArgs, now_ms: i64) -> Result<Self, Failure> {
        let reason = match args.reason.as_deref() {
            None => None,
            Some(name) => Some(reason(name)?),
        };
        let since_ms = match args.since.as_deref() {
            None => None,
            Some(text) => Some(since(text, now_ms)?),
        };
        let (destination, source) = (args.destination.clone(), args.source.clone());
        Ok(Self {
            reason,
            destination,
            source,
            since_ms,
        })
    }

    fn takes(&self, letter: &DeadLetter) -> bool {
        self.reason.is_none_or(|reason| reason == letter.reason)
            && self
                .destination
                .as_ref()
                .is_none_or(|name| *name == letter.destination)
            && self
                .source
                .as_ref()
                .is_none_or(|name| *name == letter.source)
            && self
                .since_ms
                .is_none_or(|since_ms| letter.failed_at_ms >= since_ms)
    }
}

fn reason(name: &str) -> Result<Reason, Failure> {
    Reason::ALL
        .into_iter()
        .find(|reason| reason.as_str() == name)
        .ok_or_else(|| {
            let known: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
            Failure::config(
                "--reason",
                format!("`{name}` is not one of {}", known.join(", ")),
            )
        })
}

/// A time, or an age counted back from `now_ms`.
pub(crate) fn since(text: &str, now_ms: i64) -> Result<i64, Failure> {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Ok(time.as_millisecond());
    }
    match humantime::parse_duration(text) {
        Ok(age) => Ok(now_ms.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))),
        Err(_) => Err(Failure::config(
            "--since",
            format!("`{text}` is neither a time like 2026-11-30T08:00:00Z nor an age like 2h"),
        )),
    }
}

// === impl Latest ===

impl Latest {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            by_time: BTreeMap::new(),
            times: HashMap::new(),
        }
    }

    fn add(&mut self, letter: DeadLetter) {
        let id = letter.dead_letter_id.clone();
        if let Some(at_ms) = self.times.get(&id) {
            if *at_ms >= letter.failed_at_ms {
                return;
            }
            self.by_time.remove(&(*at_ms, id.clone()));
        }
        self.times.insert(id.clone(), letter.failed_at_ms);
        self.by_time.insert((letter.failed_at_ms, id), letter);
        if self.by_time.len() > self.limit
            && let Some(((_, oldest), _)) = self.by_time.pop_first()
        {
            self.times.remove(&oldest);
        }
    }

    /// The latest first.
    fn letters(&self) -> impl Iterator<Item = &DeadLetter> {
        self.by_time.values().rev()
    }
}

fn letter_text(letter: &DeadLetter) -> String {
    let status = letter
        .last_status
        .map_or_else(|| "-".to_owned(), |status| status.to_string());
    let key = format!(
        "{}/{}/{}",
        letter.source, letter.delivery_id, letter.destination
    );
    format!(
        "{}  {}  {}  {}  attempts {}  status {status}  {}\n",
        time(letter.failed_at_ms),
        letter.reason.as_str(),
        plain(&key),
        plain(&letter.event_type),
        letter.attempts,
        plain(&letter.detail)
    )
}

/// Everything but headers and body, which may be confidential.
fn letter_json(letter: &DeadLetter) -> String {
    let history: Vec<_> = letter.history.iter().map(attempt_json).collect();
    let letter = json!({
        "dead_letter_id": letter.dead_letter_id,
        "source": letter.source,
        "delivery_id": letter.delivery_id,
        "destination": letter.destination,
        "event_type": letter.event_type,
        "reason": letter.reason.as_str(),
        "detail": letter.detail,
        "attempts": letter.attempts,
        "generation": letter.generation,
        "last_status": letter.last_status,
        "received_at": time(letter.received_at_ms),
        "failed_at": time(letter.failed_at_ms),
        "history": history,
        "content_type": letter.content_type,
        "body_bytes": letter.body.len(),
        "origin": {
            "topic": letter.origin.topic,
            "partition": letter.origin.partition,
            "offset": letter.origin.offset,
        },
    });
    format!("{letter}\n")
}

fn attempt_json(attempt: &AttemptSummary) -> serde_json::Value {
    json!({
        "attempt": attempt.attempt,
        "token": attempt.token.to_string(),
        "started_at": time(attempt.started_at_ms),
        "duration_ms": attempt.duration_ms,
        "outcome": attempt.outcome.as_str(),
        "status": attempt.status,
        "detail": attempt.detail,
    })
}

#[cfg(test)]
mod tests;
