//! `fencepost verify`: why a captured request is taken or refused, by the code that takes and refuses requests.

pub(crate) mod head;

use crate::{
    args::VerifyArgs,
    config::{Config, Loaded},
    failure::Failure,
    output::{plain, time},
};
use head::{HEAD_BYTES_MAX, Head};
use http::{Method, Request, request::Parts};
use ingest::{
    SourceConfig,
    explain::{Judged, Mark, Step, Trial},
};
use serde_json::json;
use std::{
    io::{self, Read},
    path::Path,
};

/// A certificate is much shorter.
const CERTIFICATE_BYTES_MAX: usize = 256 << 10;

/// What came of it.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// For people, or JSON.
    pub text: String,
    /// Whether it would be answered 2xx.
    pub taken: bool,
}

/// Explains the captured request. Opens the secrets of its source and no others.
///
/// # Errors
/// [`Failure::Config`]: mistakes in the source or in an argument.
pub(crate) fn run(
    args: &VerifyArgs,
    loaded: &Loaded,
    now_ms: i64,
    colours: bool,
) -> Result<Verdict, Failure> {
    let source = source(&loaded.config, &args.source)?;
    if is_stdin(&args.headers) && is_stdin(&args.body) {
        let message = "only one of --headers and --body can come from standard input";
        return Err(Failure::config("--headers", message));
    }
    let mut trial = Trial::open(&args.source, source.clone(), &loaded.base)?;
    if let Some(file) = &args.cert {
        let pem = read(file, CERTIFICATE_BYTES_MAX, "--cert")?;
        trial
            .give_certificate(&pem)
            .map_err(|message| Failure::config("--cert", message))?;
    }
    let text = read(&args.headers, HEAD_BYTES_MAX, "--headers")?;
    if text.len() > HEAD_BYTES_MAX {
        let message = format!("is longer than {HEAD_BYTES_MAX} bytes: no server takes such a head");
        return Err(Failure::config("--headers", message));
    }
    let head =
        Head::parse(&text).map_err(|error| Failure::config("--headers", error.to_string()))?;
    let body = read(&args.body, trial.body_bytes_max(), "--body")?;
    let at_ms = match &args.at {
        Some(text) => instant_ms(text).ok_or_else(|| {
            let message = "is neither a time such as 2026-11-30T08:00:00Z nor seconds since 1970";
            Failure::config("--at", message)
        })?,
        None => now_ms,
    };
    let parts = parts(args, head)?;
    let mut judged = trial.judge(&parts, &body, at_ms);
    let to = destinations(&loaded.config, &args.source, &judged);
    comment(&mut judged, &to);
    let text = if args.json {
        format!("{}\n", as_json(&args.source, at_ms, &judged, &to))
    } else {
        rendered(&args.source, at_ms, &judged, colours)
    };
    Ok(Verdict {
        text: trial.hide(&text),
        taken: judged.taken,
    })
}

/// The source of that name.
///
/// # Errors
/// [`Failure::Config`] with the names that there are.
pub(crate) fn source<'a>(config: &'a Config, name: &str) -> Result<&'a SourceConfig, Failure> {
    config.sources.get(name).ok_or_else(|| {
        let names: Vec<&str> = config.sources.keys().map(String::as_str).collect();
        let message = match names.as_slice() {
            [] => "is not configured; no source is: does --config name the right file?".to_owned(),
            names => format!("is not configured; there are {}", names.join(", ")),
        };
        Failure::config(format!("sources.{}", plain(name)), message)
    })
}

/// Whether it stands for standard input.
pub(crate) fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Reads a file, or standard input for `-`: at most one byte more than `bytes_max`.
///
/// # Errors
/// [`Failure::Config`] at the argument's name when it can not be read.
pub(crate) fn read(file: &Path, bytes_max: usize, argument: &str) -> Result<Vec<u8>, Failure> {
    let limit = u64::try_from(bytes_max)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let mut bytes = Vec::new();
    let done = if is_stdin(file) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    match done {
        Ok(_) => Ok(bytes),
        Err(error) => {
            let message = format!("can not read {}: {error}", file.display());
            Err(Failure::config(argument, message))
        }
    }
}

fn parts(args: &VerifyArgs, head: Head) -> Result<Parts, Failure> {
    let method = match &args.method {
        Some(text) => Method::from_bytes(text.to_ascii_uppercase().as_bytes())
            .map_err(|_invalid| Failure::config("--method", "is not an HTTP method"))?,
        None => head.method.unwrap_or(Method::POST),
    };
    let query = args.query.as_deref().or(head.query.as_deref());
    let target = query.map_or_else(
        || "/".to_owned(),
        |query| format!("/?{}", query.strip_prefix('?').unwrap_or(query)),
    );
    let request = Request::builder()
        .method(method)
        .uri(target)
        .body(())
        .map_err(|_invalid| Failure::config("--query", "is not the query of a URL"))?;
    let (mut parts, ()) = request.into_parts();
    parts.headers = head.headers;
    Ok(parts)
}

fn instant_ms(text: &str) -> Option<i64> {
    if let Ok(seconds) = text.parse::<i64>() {
        return seconds.checked_mul(1_000);
    }
    let instant: jiff::Timestamp = text.parse().ok()?;
    Some(instant.as_millisecond())
}

/// Where the routes send it; none when it does not go into the log.
fn destinations<'a>(config: &'a Config, source: &str, judged: &Judged) -> Vec<&'a str> {
    let webhook = judged.webhook.as_ref();
    webhook.map_or_else(Vec::new, |(_, event_type)| {
        dispatcher::routes::destinations(&config.routes, source, event_type)
    })
}

/// What the source itself can not know.
fn comment(judged: &mut Judged, to: &[&str]) {
    let mut add = |mark, what, text| judged.steps.push(Step { mark, what, text });
    if judged.webhook.is_some() {
        if to.is_empty() {
            let text = "none takes it: it is kept in the log and goes nowhere";
            add(Mark::Note, "routes", text.to_owned());
        } else {
            add(Mark::Good, "routes", format!("to {}", to.join(", ")));
        }
    }
    if judged.only_late
        && let Some(at_ms) = judged.signed_at_ms
    {
        let text = format!(
            "the signature would have been in time at its own time; use --at {}",
            time(at_ms)
        );
        add(Mark::Note, "hint", text);
    }
    if judged.lacks_certificate {
        let text = "it can not be checked without the sender's certificate: fetch what paypal-cert-url leads to, and \
                    give it with --cert";
        add(Mark::Note, "hint", text.to_owned());
    }
}

fn rendered(source: &str, at_ms: i64, judged: &Judged, colours: bool) -> String {
    let mut text = format!("a request to {source}, received {}\n", time(at_ms));
    for step in &judged.steps {
        let mark = match (step.mark, colours) {
            (Mark::Good, true) => "\u{1b}[32m✓ \u{1b}[0m",
            (Mark::Bad, true) => "\u{1b}[31m✗ \u{1b}[0m",
            (Mark::Note, true) => "\u{1b}[2m· \u{1b}[0m",
            (Mark::Good, false) => "ok",
            (Mark::Bad, false) => "no",
            (Mark::Note, false) => "  ",
        };
        text += &format!("  {mark}  {:<12}  {}\n", step.what, plain(&step.text));
    }
    let Judged {
        status, outcome, ..
    } = judged;
    text += &match &judged.cause {
        _ if judged.lacks_certificate => "can not be told without the certificate\n".to_owned(),
        None => format!("taken: {status}, {outcome}\n"),
        Some(cause) => format!("refused: {status}, {outcome}: {}\n", plain(cause)),
    };
    text
}

fn as_json(source: &str, at_ms: i64, judged: &Judged, to: &[&str]) -> serde_json::Value {
    let word = |mark| match mark {
        Mark::Good => "ok",
        Mark::Bad => "bad",
        Mark::Note => "note",
    };
    let steps: Vec<_> = judged
        .steps
        .iter()
        .map(|step| json!({ "mark": word(step.mark), "what": step.what, "text": step.text }))
        .collect();
    let (delivery_id, event_type) = judged.webhook.as_ref().map_or((None, None), |(id, name)| {
        (Some(id.as_str()), Some(name.as_str()))
    });
    json!({
        "source": source,
        "received_at": time(at_ms),
        "taken": judged.taken,
        "status": judged.status,
        "outcome": judged.outcome,
        "cause": judged.cause,
        "secret_slot": judged.slot,
        "signed_at": judged.signed_at_ms.map(time),
        "delivery_id": delivery_id,
        "event_type": event_type,
        "destinations": to,
        "steps": steps,
    })
}

#[cfg(test)]
mod tests;
