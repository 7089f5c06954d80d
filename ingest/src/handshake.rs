//! Answers the requests by which a sender tries an endpoint out, as [`crate::rule::Handshake`] says: Slack's challenge, Zoom's
//! validation, Discord's ping, Meta's subscription.
//!
//! An endpoint that echoes what anybody sends would help attackers, so: what is signed is answered only after its signature was
//! checked, what can not be signed only when it brings the token, and what is sent back is bounded and plain.

use crate::{
    extract::{form_field, json_text},
    request::Request,
    rule::{Algorithm, Handshake, Reply, Rule, Value},
    verify::{
        Refusal,
        key::{decoded, fits, mac},
    },
};
use http::Method;
use runtime::Secret;
use std::collections::BTreeMap;

/// Longest value that is sent back, bytes.
const ECHO_BYTES_MAX: usize = 1_024;

/// What a handshake is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// HTTP status.
    pub status: u16,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// The answer to a request that no signature protects: one with a token in its query, or one that the sender never signs.
pub fn unsigned(rule: &Rule, token: Option<&Secret>, request: &Request<'_>) -> Option<Answered> {
    let handshake = rule.handshake.iter().find(|handshake| {
        (handshake.unsigned || handshake.query.is_some()) && is(handshake, rule, request)
    })?;
    if let Some(name) = &handshake.token_query {
        let given = parameter(request, name)?;
        let given = [given.into_bytes()];
        let fits = token?.with(|token| fits(Algorithm::Token, token, &[], &given));
        if !fits || !token?.usable_at(request.received_at_ms) {
            return None;
        }
    }
    reply(handshake, rule, None, request)
}

/// The answer to a request whose signature was made with `secret`; none when it is a webhook.
///
/// # Errors
/// `Malformed` when it is a handshake without what its answer is made of: it is no webhook either.
pub fn signed(
    rule: &Rule,
    secret: Option<&Secret>,
    request: &Request<'_>,
) -> Result<Option<Answered>, Refusal> {
    let mut handshakes = rule.handshake.iter();
    let Some(handshake) =
        handshakes.find(|handshake| handshake.query.is_none() && is(handshake, rule, request))
    else {
        return Ok(None);
    };
    let answered = reply(handshake, rule, secret, request);
    let malformed = || Refusal::Malformed("the handshake".to_owned());
    answered.map(Some).ok_or_else(malformed)
}

fn is(handshake: &Handshake, rule: &Rule, request: &Request<'_>) -> bool {
    let value = if let Some(name) = &handshake.query {
        if request.method != Method::GET {
            return false;
        }
        parameter(request, name)
    } else if request.method != Method::POST {
        return false;
    } else if let Some(path) = &handshake.json {
        json_text(rule, request, path)
    } else if let Some(name) = &handshake.form {
        form_field(request, name)
            .ok()
            .flatten()
            .map(std::borrow::Cow::into_owned)
    } else {
        None
    };
    value.is_some_and(|value| value == handshake.equals)
}

fn reply(
    handshake: &Handshake,
    rule: &Rule,
    secret: Option<&Secret>,
    request: &Request<'_>,
) -> Option<Answered> {
    let answered = |content_type, body| Answered {
        status: handshake.status,
        content_type,
        body,
    };
    let plain = |text: String| answered("text/plain", text);
    let json = |text: String| answered("application/json", text);
    Some(match &handshake.reply {
        Reply::Empty => plain(String::new()),
        Reply::Constant(text) => json(text.clone()),
        Reply::EchoJson(path) => plain(short(json_text(rule, request, path)?)?),
        Reply::EchoQuery(name) => plain(short(parameter(request, name)?)?),
        Reply::Object(fields) => {
            let value = |value: &Value| match value {
                Value::Json(path) => short(json_text(rule, request, path)?),
                Value::HmacOfJson(path) => {
                    let text = short(json_text(rule, request, path)?)?;
                    let made = secret?.with(|secret| {
                        let key = decoded(&rule.secret, secret).ok()?;
                        mac(Algorithm::HmacSha256, &key, &[text])
                    })?;
                    Some(hex::encode(made))
                }
            };
            let object: Option<BTreeMap<&String, String>> = fields
                .iter()
                .map(|(name, of)| Some((name, value(of)?)))
                .collect();
            json(serde_json::to_string(&object?).ok()?)
        }
    })
}

fn short(text: String) -> Option<String> {
    let fits = text.len() <= ECHO_BYTES_MAX && !text.contains(char::is_control);
    fits.then_some(text)
}

/// A parameter of the query that may stand at most once.
fn parameter(request: &Request<'_>, name: &str) -> Option<String> {
    let mut found = form_urlencoded::parse(request.query?.as_bytes())
        .filter(|(given, _)| given == name)
        .map(|(_, value)| value.into_owned());
    found.next().filter(|_| found.next().is_none())
}
