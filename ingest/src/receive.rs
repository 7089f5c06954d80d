//! One request, top to bottom: limits, verification over the raw bytes, the log, the answer.
//!
//! The order is the safety argument. What costs a stranger nothing to send costs us little before the signature is
//! checked: no decompression, no parsing, a bounded body within a bounded time. 2xx is said only after the log has
//! acknowledged; whenever that is in doubt the sender is asked to come again, and the claims absorb the repeat.

use crate::{
    answer::{Refused, Taken},
    app::{App, Inner, Source},
    body::{Pace, collect},
    certificates::{Certificate, NoCertificate},
    extract::{delivery_id, event_type},
    hand_over::{self, Place},
    handshake::{self, Answered},
    metrics::Metrics,
    pass_on::pass_on,
    rule::Rule,
    server::{Client, Signed},
    verify::{Refusal, Verified, certificate_url, paypal, verify_with},
};
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use event_log::{EventLog, Headers, Record};
use http::{Method, Request, header, request::Parts};
use schemas::{Topic, Webhook, header as names};
use std::{net::IpAddr, sync::Arc};
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, Span, field::Empty};

/// Larger bodies are verified and read on a thread of their own, bytes: up to here it takes well under a millisecond for each
/// secret, and a hand-over would cost more than it saves.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// [`Told::verification`] of a request that was signed rightly.
const VERIFIED: &str = "ok";

/// Headers of one request. HTTP/1 refuses more by itself; an HTTP/2 client could write a thousand in a kilobyte, and each takes
/// some hundred bytes of memory here for as long as its body is waited for.
const HEADERS_MAX: usize = 100;

/// When the head had arrived.
#[derive(Clone, Copy)]
struct Arrival {
    at: Instant,
    at_ms: i64,
}

/// What the log line of a request tells, as far as it has come.
#[derive(Clone, Default)]
struct Told {
    delivery_id: String,
    event_type: String,
    verification: &'static str,
    /// Whose request it is; none when it did not come over a port.
    client: Option<IpAddr>,
}

/// Answers one request to `/<prefix>/<source_name>`.
pub(crate) async fn receive<L: EventLog>(
    app: App<L>,
    source_name: String,
    request: Request<Body>,
) -> Response {
    let inner = app.inner();
    let arrival = Arrival {
        at: Instant::now(),
        at_ms: inner.clock.now_ms(),
    };
    let Some(source) = inner.sources.get(&source_name) else {
        return to_nobody(&app, request, arrival).await;
    };
    // A root of its own: a stranger's trace context is not ours to go on with.
    let span = tracing::info_span!(
        parent: None,
        "receive",
        otel.kind = "server",
        source = source.name,
        delivery_id = Empty,
        event_type = Empty,
        outcome = Empty,
        http.response.status_code = Empty,
    );
    let (parts, body) = request.into_parts();
    let mut told = Told {
        verification: "none",
        client: parts.extensions.get().map(|Client(address)| *address),
        ..Told::default()
    };
    let taken = take(inner, source, parts, body, arrival, &mut told)
        .instrument(span.clone())
        .await;
    finish(inner, source, arrival, &told, &span, taken)
}

/// Answers a request to a source that there is not, after all that a forged one to a source goes through: neither the time nor
/// what is said of method, size and coding tells which names exist.
async fn to_nobody<L: EventLog>(
    app: &App<L>,
    request: Request<Body>,
    arrival: Arrival,
) -> Response {
    let inner = app.inner();
    let (parts, body) = request.into_parts();
    match take(
        inner,
        &inner.decoy,
        parts,
        body,
        arrival,
        &mut Told::default(),
    )
    .await
    {
        Err(Refused::Unverified(_)) | Ok(_) => unknown(app),
        Err(refused) => {
            inner.metrics.answered("unknown", refused.outcome());
            refused.into_response()
        }
    }
}

/// Answers a request to no source.
pub(crate) fn unknown<L>(app: &App<L>) -> Response {
    let refused = Refused::UnknownSource;
    app.inner().metrics.answered("unknown", refused.outcome());
    tracing::debug!(outcome = refused.outcome(), "request to no source");
    refused.into_response()
}

/// Answers a request of which not even the head can be kept.
pub(crate) fn overloaded(metrics: &Metrics) -> Response {
    let refused = Refused::Full;
    metrics.answered("unknown", refused.outcome());
    tracing::debug!(outcome = refused.outcome(), "no room for a head");
    refused.into_response()
}

async fn take<L: EventLog>(
    inner: &Inner<L>,
    source: &Arc<Source>,
    parts: Parts,
    body: Body,
    arrival: Arrival,
    told: &mut Told,
) -> Result<Taken, Refused> {
    check_head(&parts, source)?;
    if let Some(rate) = &source.rate {
        rate.take()
            .map_err(|retry_after_seconds| Refused::TooMany {
                retry_after_seconds,
            })?;
    }
    hand_over::ready(inner)?;

    let deadline = arrival.at + source.deadline;
    let body_deadline = deadline.min(arrival.at + inner.config.body_timeout);
    let mut share = inner.budget.share(inner.metrics.holding_bytes());
    let pace = Pace {
        since: arrival.at,
        grace: inner.config.body_grace,
        bytes_per_second_min: inner.config.body_bytes_per_second_min,
    };
    let collected = collect(body, source.body_bytes_max, pace, &mut share);
    let body = match timeout_at(body_deadline, collected).await {
        Ok(collected) => collected?,
        Err(_) => return Err(Refused::Slow),
    };

    let body_bytes = body.len();
    let certificate = certificate(inner, source, &parts, &body, arrival, deadline).await?;
    let received = Received {
        parts,
        body,
        certificate,
        at_ms: arrival.at_ms,
    };
    let understood = understand_anywhere(source, received, told).await?;
    if let Some(verified) = understood.verified {
        inner
            .metrics
            .verified(&source.name, verified.slot, body_bytes);
    }
    let webhook = match understood.is? {
        Is::Webhook(webhook) => webhook,
        Is::Handshake(answered) => return Ok(Taken::Handshake(answered)),
    };
    if !source.takes(&webhook.event_type) {
        return Ok(Taken::Ignored(source.answer.clone()));
    }
    let record = to_record(inner, webhook)?;
    let place = hand_over::hand_over(inner, record, deadline).await?;
    let answer = source.answer.clone();
    Ok(match place {
        Place::Log => {
            let took = arrival.at.elapsed();
            inner.metrics.acknowledged(&source.name, took);
            Taken::Accepted(answer)
        }
        Place::Spool => Taken::Spooled(answer),
    })
}

pub(crate) fn check_head(parts: &Parts, source: &Source) -> Result<(), Refused> {
    if parts.headers.len() > HEADERS_MAX {
        return Err(Refused::ManyHeaders);
    }
    let greets = parts.method == Method::GET && source.greets();
    if parts.method != Method::POST && !greets {
        return Err(Refused::Method);
    }
    if !greets && !source.takes_type(&parts.headers) {
        return Err(Refused::MediaType);
    }
    let plain = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !parts
        .headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .all(plain)
    {
        return Err(Refused::Encoded);
    }
    // hyper understands `chunked` and takes it for that whatever other codings stand before it.
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let chunked = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !codings.next().is_none_or(chunked) || codings.next().is_some() {
        return Err(Refused::Coded);
    }
    Ok(())
}

/// What a request turned out to be.
struct Understood {
    /// Which secret it was signed with; none of a handshake that is not signed.
    verified: Option<Verified>,
    /// Or why it is nothing although it is signed.
    is: Result<Is, Refusal>,
}

enum Is {
    Webhook(Webhook),
    Handshake(Answered),
}

/// A request with all that is needed to verify it.
struct Received {
    parts: Parts,
    body: Bytes,
    certificate: Option<Arc<Certificate>>,
    at_ms: i64,
}

/// The sender's certificate, where the source's verifier needs one. It is fetched only for a request that could be accepted
/// with it; of others it is said elsewhere what is wrong with them.
async fn certificate<L>(
    inner: &Inner<L>,
    source: &Source,
    parts: &Parts,
    body: &Bytes,
    arrival: Arrival,
    deadline: Instant,
) -> Result<Option<Arc<Certificate>>, Refused> {
    let (Some(certificates), Some(rule)) = (&inner.certificates, source.rule_for(&parts.headers))
    else {
        return Ok(None);
    };
    let request = request_of(source, parts, body, arrival.at_ms);
    let Some(url) = certificate_url(rule, &request) else {
        return Ok(None);
    };
    match certificates.get(url, deadline, arrival.at_ms).await {
        Ok(certificate) => Ok(Some(certificate)),
        Err(NoCertificate::NotAllowed) => {
            Err(Refusal::Malformed(paypal::CERTIFICATE_URL.to_owned()).into())
        }
        Err(error @ (NoCertificate::Busy | NoCertificate::Failed(_))) => {
            Err(Refused::NoCertificate(error))
        }
    }
}

fn request_of<'a>(
    source: &'a Source,
    parts: &'a Parts,
    body: &'a Bytes,
    received_at_ms: i64,
) -> crate::Request<'a> {
    crate::Request {
        method: &parts.method,
        headers: &parts.headers,
        query: parts.uri.query(),
        public_url: source.public_url.as_deref(),
        body,
        received_at_ms,
    }
}

/// [`understand`], where it holds up nobody else: megabytes under several secrets take long enough to be noticed.
async fn understand_anywhere(
    source: &Arc<Source>,
    received: Received,
    told: &mut Told,
) -> Result<Understood, Refused> {
    if received.body.len() <= INLINE_BYTES_MAX {
        return Ok(understand(source, &received, told)?);
    }
    let (source, span) = (Arc::clone(source), Span::current());
    let mut seen = told.clone();
    let work = move || {
        let understood = span.in_scope(|| understand(&source, &received, &mut seen));
        (seen, understood)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok((seen, understood)) => {
            *told = seen;
            Ok(understood?)
        }
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Refused::Ended),
        },
    }
}

/// Verifies the bytes, and only then looks into them.
fn understand(
    source: &Source,
    received: &Received,
    told: &mut Told,
) -> Result<Understood, Refusal> {
    let Received { parts, body, .. } = received;
    let rule = source.rule_for(&parts.headers).ok_or(Refusal::Unsigned)?;
    let request = request_of(source, parts, body, received.at_ms);
    let token = source.handshake_token.as_ref();
    if let Some(answered) = handshake::unsigned(rule, token, &request) {
        told.verification = "handshake";
        return Ok(Understood {
            verified: None,
            is: Ok(Is::Handshake(answered)),
        });
    }
    if parts.method != Method::POST {
        told.verification = "unsigned";
        return Err(Refusal::Unsigned);
    }
    let certificate = received.certificate.as_deref();
    let verified = verify_with(rule, &source.secrets, &request, certificate)
        .inspect_err(|refusal| told.verification = word(refusal))?;
    told.verification = VERIFIED;
    let is = match handshake::signed(rule, source.secrets.get(verified.slot), &request) {
        Ok(Some(answered)) => Ok(Is::Handshake(answered)),
        Ok(None) => to_webhook(source, rule, &request, body, told).map(Is::Webhook),
        Err(refusal) => Err(refusal),
    };
    Ok(Understood {
        verified: Some(verified),
        is,
    })
}

fn to_webhook(
    source: &Source,
    rule: &Rule,
    request: &crate::Request<'_>,
    body: &Bytes,
    told: &mut Told,
) -> Result<Webhook, Refusal> {
    told.delivery_id = delivery_id(rule, &source.name, request)?;
    told.event_type = event_type(rule, request)?;
    let content_type = request.headers.get(header::CONTENT_TYPE);
    Ok(Webhook {
        source: source.name.clone(),
        delivery_id: told.delivery_id.clone(),
        event_type: told.event_type.clone(),
        content_type: content_type
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned),
        headers: pass_on(request.headers, &source.rules),
        body: body.clone(),
        received_at_ms: request.received_at_ms,
        generation: 0,
    })
}

fn to_record<L>(inner: &Inner<L>, webhook: Webhook) -> Result<Record, Refused> {
    let value = inner
        .codec
        .encode_webhook(&webhook)
        .map_err(Refused::NotEncoded)?;
    let mut headers: Headers = runtime::trace::current_headers();
    let static_type = Bytes::from_static(names::CONTENT_TYPE_AVRO.as_bytes());
    headers.push((names::CONTENT_TYPE.to_owned(), static_type));
    headers.push((names::SOURCE.to_owned(), webhook.source.into()));
    headers.push((names::EVENT_TYPE.to_owned(), webhook.event_type.into()));
    Ok(Record {
        topic: Topic::Webhooks,
        key: webhook.delivery_id.into(),
        value,
        headers,
    })
}

/// Counts, logs and answers. Never with a body, a signature or a secret.
fn finish<L>(
    inner: &Inner<L>,
    source: &Source,
    arrival: Arrival,
    told: &Told,
    span: &Span,
    taken: Result<Taken, Refused>,
) -> Response {
    let (outcome, status, cause) = match &taken {
        Ok(taken) => (taken.outcome(), taken.status(), None),
        Err(refused) => (
            refused.outcome(),
            refused.status(),
            Some(refused.to_string()),
        ),
    };
    inner.metrics.answered(&source.name, outcome);
    span.record("delivery_id", told.delivery_id.as_str());
    span.record("event_type", told.event_type.as_str());
    span.record("outcome", outcome);
    span.record("http.response.status_code", status.as_u16());
    let duration_ms = u64::try_from(arrival.at.elapsed().as_millis()).unwrap_or(u64::MAX);
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                parent: span,
                source = source.name,
                delivery_id = told.delivery_id,
                event_type = told.event_type,
                verification = told.verification,
                client = told.client.map(tracing::field::display),
                outcome,
                status = status.as_u16(),
                cause,
                received_at_ms = arrival.at_ms,
                duration_ms,
                "webhook answered"
            )
        };
    }
    // Somebody should look at what we could not store; what a stranger sends is no news.
    if status.is_server_error() {
        line!(warn)
    } else {
        line!(info)
    }
    let mut response = match taken {
        Ok(taken) => taken.into_response(),
        Err(refused) => refused.into_response(),
    };
    if told.verification == VERIFIED {
        response.extensions_mut().insert(Signed);
    }
    response
}

fn word(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Unsigned => "unsigned",
        Refusal::Mismatch => "mismatch",
        Refusal::Stale => "stale",
        Refusal::Early => "early",
        Refusal::Repeated(_) | Refusal::Missing(_) | Refusal::Malformed(_) => "malformed",
    }
}

#[cfg(test)]
mod tests;
