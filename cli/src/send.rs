//! `fencepost send`: signs a request as a source's sender does, and posts it.

mod choice;
mod post;

use crate::{
    args::SendArgs,
    config::Loaded,
    failure::Failure,
    output::{complain, plain, print},
    verify::{head::printed, read, source},
};
use choice::{configured, given, key};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use ingest::{
    Request, Rule, SourceConfig, Unsigned,
    explain::hide,
    extract,
    rule::{Algorithm, Verifier},
    sign::{SignError, make},
};
use post::Poster;
use reqwest::Url;
use runtime::{Clock, Secret};
use std::process::ExitCode;
use uuid::Uuid;

/// The event type where none is given.
const EVENT: &str = "ping";

/// Who sends what.
#[derive(Debug)]
struct Sender<'a> {
    args: &'a SendArgs,
    source: &'a SourceConfig,
    rule: Rule,
    /// Signs; never shown.
    key: Secret,
    url: Url,
    body: Vec<u8>,
}

/// A signed request.
#[derive(Debug)]
struct Signed {
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    /// What the sender of the command should know.
    notes: Vec<String>,
}

/// Signs and posts `--count` requests, or shows the first with `--dry-run`.
///
/// # Errors
/// [`Failure::Config`]: mistakes in the source or in an argument. [`Failure::Unavailable`]: nobody answers.
pub(crate) async fn run(
    args: &SendArgs,
    loaded: &Loaded,
    clock: &Clock,
) -> Result<ExitCode, Failure> {
    let sender = Sender::new(args, loaded)?;
    let first = sender.signed(clock.now_ms())?;
    for note in &first.notes {
        complain(&sender.shown(format!("note: {note}").as_bytes()));
    }
    if args.dry_run {
        show(&sender.head(&first))?;
        return Ok(ExitCode::SUCCESS);
    }
    let poster = Poster::new(&sender.url)?;
    show(&sender.sent(&first))?;
    let mut all_taken = true;
    let mut next = Some(first);
    for _ in 0..args.count {
        let signed = match next.take() {
            Some(signed) => signed,
            None => sender.signed(clock.now_ms())?,
        };
        let answer = poster.post(signed.url, signed.headers, signed.body).await?;
        all_taken &= answer.status.is_success();
        show(&sender.shown(&answer.printed()))?;
    }
    Ok(ExitCode::from(u8::from(!all_taken)))
}

// === impl Sender ===

impl<'a> Sender<'a> {
    fn new(args: &'a SendArgs, loaded: &'a Loaded) -> Result<Self, Failure> {
        let source = source(&loaded.config, &args.source)?;
        let at = format!("sources.{}", args.source);
        let problems = source.check(&at);
        if !problems.is_empty() {
            return Err(problems.into());
        }
        let rule = source
            .rule()
            .map_err(|message| Failure::config(&at, message))?;
        let url = match &args.to {
            Some(text) => given(text)?,
            None => configured(&loaded.config, &args.source)?,
        };
        let key = key(args, source, &rule, &loaded.base)?;
        let bytes_max = ingest::config::BODY_BYTES_LIMIT;
        let body = read(&args.body, bytes_max, "--body")?;
        if body.len() > bytes_max {
            let message = format!("is longer than {bytes_max} bytes: no source takes it");
            return Err(Failure::config("--body", message));
        }
        Ok(Self {
            args,
            source,
            rule,
            key,
            url,
            body,
        })
    }

    fn signed(&self, now_ms: i64) -> Result<Signed, Failure> {
        let fresh = Uuid::new_v4();
        let fresh = match self.rule.verifier {
            // Its tokens are letters and digits.
            Some(Verifier::Mailgun) => fresh.simple().to_string(),
            _ => fresh.to_string(),
        };
        let public_url = self.public_url();
        let unsigned = Unsigned {
            delivery_id: self.args.id.as_deref().unwrap_or(&fresh),
            event_type: self.args.event.as_deref().unwrap_or(EVENT),
            public_url: public_url.as_deref(),
            body: &self.body,
            now_ms,
        };
        let made = self.key.with(|key| make(&self.rule, &[key], &unsigned));
        let made = made.map_err(|error| {
            let given = self.args.signing_key_env.is_some() || self.args.signing_key_file.is_some();
            if given && matches!(error, SignError::Key(_)) {
                return Failure::config("--signing-key", error.to_string());
            }
            let at = format!("sources.{}", self.args.source);
            Failure::config(at, error.to_string())
        })?;
        let mut url = self.url.clone();
        if let Some(query) = &made.query {
            url.set_query(Some(query));
        }
        let headers = self.headers(&made.headers)?;
        let request = Request {
            method: &Method::POST,
            headers: &headers,
            query: url.query(),
            public_url: public_url.as_deref(),
            body: &made.body,
            received_at_ms: now_ms,
        };
        let mut notes = self.notes(&request);
        if made.body != self.body {
            let text = String::from_utf8_lossy(&made.body);
            notes.push(format!(
                "this sender signs inside the body, which becomes {text}"
            ));
        }
        Ok(Signed {
            url,
            headers,
            body: made.body,
            notes,
        })
    }

    /// The URL that is signed, where one is: with the query that is called.
    fn public_url(&self) -> Option<String> {
        let url = self.source.public_url.as_ref()?;
        Some(match self.url.query() {
            Some(query) if !url.contains('?') => format!("{url}?{query}"),
            Some(_) | None => url.clone(),
        })
    }

    fn headers(&self, made: &[(String, String)]) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        let mut add = |name: &str, value: &str, argument: &str| {
            let name = HeaderName::from_bytes(name.trim().as_bytes());
            let value = HeaderValue::from_str(value.trim());
            match (name, value) {
                (Ok(name), Ok(value)) => {
                    headers.append(name, value);
                    Ok(())
                }
                _ => Err(Failure::config(
                    argument,
                    "makes no header that can be sent",
                )),
            }
        };
        add(
            "user-agent",
            concat!("fencepost/", env!("CARGO_PKG_VERSION")),
            "--header",
        )?;
        for (name, value) in made {
            if name != header::CONTENT_TYPE.as_str() || self.args.content_type.is_none() {
                add(name, value, "--id, --event or the key")?;
            }
        }
        for line in &self.args.header {
            let Some((name, value)) = line.split_once(':') else {
                return Err(Failure::config("--header", "is not `Name: value`"));
            };
            add(name, value, "--header")?;
        }
        if let Some(kind) = &self.args.content_type {
            add(header::CONTENT_TYPE.as_str(), kind, "--content-type")?;
        } else if !headers.contains_key(header::CONTENT_TYPE) {
            let kind = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, kind);
        }
        Ok(headers)
    }

    /// Where the request is another than the arguments say, and what ingest will not like about it.
    fn notes(&self, request: &Request<'_>) -> Vec<String> {
        let mut notes = Vec::new();
        let places = |described: Vec<String>| described.join(" or ");
        let id_places = || {
            places(
                self.rule
                    .delivery_id
                    .iter()
                    .map(|p| p.described())
                    .collect(),
            )
        };
        match extract::delivery_id(&self.rule, &self.args.source, request) {
            Ok(id) => {
                if self.args.id.as_ref().is_some_and(|wanted| *wanted != id) {
                    notes.push(format!(
                        "--id has no effect: the delivery id is {id}, from {}",
                        id_places()
                    ));
                }
            }
            Err(refusal) => {
                notes.push(format!("{refusal}: ingest looks for it in {}", id_places()))
            }
        }
        let type_places = || places(self.rule.event_type.iter().map(|p| p.described()).collect());
        match (&self.args.event, extract::event_type(&self.rule, request)) {
            (Some(_), Ok(name)) if self.rule.event_type.is_empty() => {
                notes.push(format!(
                    "--event has no effect: this sender has no types{name}"
                ));
            }
            (Some(wanted), Ok(name)) if *wanted != name => notes.push(format!(
                "the event type is {name:?}, from {}: not what --event says",
                type_places()
            )),
            (_, Err(refusal)) => notes.push(refusal.to_string()),
            _ => {}
        }
        let in_body = self.rule.timestamp.iter().filter_map(|t| t.json.as_ref());
        for path in in_body {
            notes.push(format!(
                "the time of signing is {path} of the body, sent as it is"
            ));
        }
        if self.rule.algorithm == Algorithm::Token && self.args.dry_run {
            notes.push(
                "the token is the secret itself and is not shown: put it in by hand".to_owned(),
            );
        }
        notes
    }

    /// Request line and headers, as `fencepost verify` reads them.
    fn head(&self, signed: &Signed) -> String {
        let query = signed.url.query();
        let query = query.map_or_else(String::new, |query| format!("?{query}"));
        let head = format!("POST {}{query} HTTP/1.1\n", signed.url.path());
        let mut bytes = head.into_bytes();
        bytes.extend(printed(&signed.headers));
        self.shown(&bytes)
    }

    fn sent(&self, signed: &Signed) -> String {
        let mut text = format!("> POST {}\n", plain(signed.url.as_str()));
        for line in self.shown(&printed(&signed.headers)).lines() {
            text += &format!("> {}\n", plain(line));
        }
        text
    }

    /// Without the key.
    fn shown(&self, bytes: &[u8]) -> String {
        let hidden = hide(&self.rule, std::slice::from_ref(&self.key), bytes);
        String::from_utf8_lossy(&hidden).into_owned()
    }
}

fn show(text: &str) -> Result<(), Failure> {
    print(text).map_err(|error| Failure::Fatal(format!("can not print: {error}")))
}

#[cfg(test)]
mod tests;
