//! A source as the server opens it, to try captured requests on: the same checks in the same order, with a word on each.

use super::{Mark, Step, explain_with, hide, signed_rightly, step};
use crate::{
    answer::{Refused, Taken},
    app::Source,
    certificates::{Certificate, is_paypals_url},
    config::SourceConfig,
    handshake,
    receive::check_head,
    request::Request,
    rule::Rule,
    verify::{Refusal, certificate_url, paypal::CERTIFICATE_URL},
};
use http::{Method, header, request::Parts};
use runtime::{Problem, Secret};
use std::path::Path;

/// A source to try requests on.
#[derive(Debug)]
pub struct Trial {
    source: Source,
    certificate: Option<Certificate>,
}

/// What the server would make of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// How it came to that, in the order in which it is looked at.
    pub steps: Vec<Step>,
    /// Whether it is answered 2xx.
    pub taken: bool,
    /// The HTTP status of the answer.
    pub status: u16,
    /// Its name, as in logs and metrics: `accepted`, `bad_signature` …
    pub outcome: &'static str,
    /// What is wrong; none when it is taken.
    pub cause: Option<String>,
    /// The secret that it was signed with, from 0.
    pub slot: Option<usize>,
    /// When it says that it was signed, milliseconds since the Unix epoch.
    pub signed_at_ms: Option<i64>,
    /// Whether the signature fits and only the time of the receipt is in its way.
    pub only_late: bool,
    /// Whether it can not be told without the sender's certificate, which the server would fetch.
    pub lacks_certificate: bool,
    /// The webhook's id and event type, when it goes into the log.
    pub webhook: Option<(String, String)>,
}

// === impl Trial ===

impl Trial {
    /// Checks the source `name` and opens its secrets; their relative paths start at `secrets_base`.
    ///
    /// # Errors
    /// Every mistake in it, with its key path.
    pub fn open(
        name: &str,
        config: SourceConfig,
        secrets_base: &Path,
    ) -> Result<Self, Vec<Problem>> {
        let source = Source::open(name, config, &format!("sources.{name}"), secrets_base)?;
        Ok(Self {
            source,
            certificate: None,
        })
    }

    /// Takes the sender's certificate from a file's text (PEM), where the server would fetch it.
    ///
    /// # Errors
    /// When it is no certificate, or not the sender's.
    pub fn give_certificate(&mut self, pem: &[u8]) -> Result<(), String> {
        let certificate = Certificate::from_pem(pem).map_err(|error| error.to_string())?;
        if !certificate.is_paypals() {
            return Err("is no certificate for PayPal's webhooks".to_owned());
        }
        self.certificate = Some(certificate);
        Ok(())
    }

    /// Largest body that the source takes, bytes.
    pub fn body_bytes_max(&self) -> usize {
        self.source.body_bytes_max
    }

    /// `text` without any secret of the source.
    pub fn hide(&self, text: &str) -> String {
        let Some(rule) = self.source.rules.first() else {
            return String::new();
        };
        let token = self.source.handshake_token.iter();
        let secrets: Vec<Secret> = self.source.secrets.iter().chain(token).cloned().collect();
        String::from_utf8_lossy(&hide(rule, &secrets, text.as_bytes())).into_owned()
    }

    /// What the server would make of a request that arrived at `received_at_ms`, when the log is there and no limit of rates or
    /// of memory is in the way.
    pub fn judge(&self, parts: &Parts, body: &[u8], received_at_ms: i64) -> Judged {
        let mut judged = Judged::new();
        if !self.explain_head(parts, body, &mut judged) {
            return judged;
        }
        let source = &self.source;
        let Some(rule) = source.rule_for(&parts.headers) else {
            judged.refuse(&Refused::Unverified(Refusal::Unsigned));
            return judged;
        };
        let request = Request {
            method: &parts.method,
            headers: &parts.headers,
            query: parts.uri.query(),
            public_url: source.public_url.as_deref(),
            body,
            received_at_ms,
        };
        let token = source.handshake_token.as_ref();
        if let Some(answered) = handshake::unsigned(rule, token, &request) {
            let text = "a request by which the sender tries the endpoint; it is not signed";
            judged.note("handshake", text.to_owned());
            judged.take(&Taken::Handshake(answered));
            return judged;
        }
        if parts.method != Method::POST {
            let text = "a GET request is taken only as a handshake with the right token";
            judged.bad("handshake", text.to_owned());
            judged.refuse(&Refused::Unverified(Refusal::Unsigned));
            return judged;
        }
        self.judge_signed(rule, &request, &mut judged);
        judged
    }

    /// From the signature on.
    fn judge_signed(&self, rule: &Rule, request: &Request<'_>, judged: &mut Judged) {
        let source = &self.source;
        let certificate = self.certificate.as_ref();
        let named = certificate_url(rule, request);
        if named.is_some_and(|url| !is_paypals_url(url)) {
            let refusal = Refusal::Malformed(CERTIFICATE_URL.to_owned());
            let text = format!("{refusal}: it is none of PayPal's, and is never fetched");
            judged.bad("certificate", text);
            judged.refuse(&Refused::Unverified(refusal));
            return;
        }
        let secrets = &source.secrets;
        let explanation = explain_with(rule, &source.name, secrets, request, certificate);
        judged.steps.extend(explanation.steps);
        judged.signed_at_ms = explanation.signed_at_ms;
        judged.lacks_certificate = certificate.is_none() && named.is_some();
        judged.only_late = explanation.result.is_err() && signed_rightly(&explanation.result);
        let verified = match explanation.result {
            Ok(verified) => verified,
            Err(refusal) => {
                judged.refuse(&Refused::Unverified(refusal));
                return;
            }
        };
        judged.slot = Some(verified.slot);
        match handshake::signed(rule, source.secrets.get(verified.slot), request) {
            Ok(None) => {}
            Ok(Some(answered)) => {
                judged.is_handshake("a request by which the sender tries the endpoint");
                judged.take(&Taken::Handshake(answered));
                return;
            }
            Err(refusal) => {
                judged.is_handshake("lacks what its answer is made of");
                judged.refuse(&Refused::Unverified(refusal));
                return;
            }
        }
        match (explanation.delivery_id, explanation.event_type) {
            (Ok(delivery_id), Ok(event_type)) => self.allow(delivery_id, event_type, judged),
            (Err(refusal), _) | (_, Err(refusal)) => {
                judged.refuse(&Refused::Unverified(refusal));
            }
        }
    }

    /// What the server looks at before any signature. Whether it makes sense to go on.
    fn explain_head(&self, parts: &Parts, body: &[u8], judged: &mut Judged) -> bool {
        match check_head(parts, &self.source) {
            Ok(()) => {
                let kind = parts.headers.get(header::CONTENT_TYPE);
                let kind = kind.map_or("without a content type".into(), |value| {
                    String::from_utf8_lossy(value.as_bytes())
                });
                judged.good("head", format!("{}, {kind}", parts.method));
            }
            Err(refused) => {
                judged.bad("head", refused.to_string());
                judged.refuse(&refused);
            }
        }
        let max = self.source.body_bytes_max;
        if body.len() > max {
            judged.bad("body", format!("more than {max} bytes"));
            judged.refuse(&Refused::TooLarge);
            return false;
        }
        let text = format!("{} bytes; at most {max} are taken", body.len());
        judged.good("body", text);
        let promised = parts.headers.get(header::CONTENT_LENGTH);
        let promised = promised.and_then(|value| value.to_str().ok());
        if let Some(promised) = promised
            && promised.parse() != Ok(body.len())
        {
            let text =
                format!("content-length is {promised}: these are not the bytes that were sent");
            judged.note("hint", text);
        }
        true
    }

    fn allow(&self, delivery_id: String, event_type: String, judged: &mut Judged) {
        let answer = self.source.answer.clone();
        if !self.source.takes(&event_type) {
            let text = "not in `events` of the source: it is answered, and goes no further";
            judged.note("allow-list", text.to_owned());
            judged.take(&Taken::Ignored(answer));
            return;
        }
        judged.good("allow-list", "the source takes this type".to_owned());
        judged.webhook = Some((delivery_id, event_type));
        judged.take(&Taken::Accepted(answer));
    }
}

// === impl Judged ===

impl Judged {
    fn new() -> Self {
        Self {
            steps: Vec::new(),
            taken: true,
            status: 0,
            outcome: "",
            cause: None,
            slot: None,
            signed_at_ms: None,
            only_late: false,
            lacks_certificate: false,
            webhook: None,
        }
    }

    /// The first refusal is the one that is answered.
    fn refuse(&mut self, refused: &Refused) {
        if self.taken {
            self.taken = false;
            self.status = refused.status().as_u16();
            self.outcome = refused.outcome();
            self.cause = Some(refused.to_string());
            self.webhook = None;
        }
    }

    fn take(&mut self, taken: &Taken) {
        if self.taken {
            self.status = taken.status().as_u16();
            self.outcome = taken.outcome();
        } else {
            self.webhook = None;
        }
    }

    /// Ids and types are those of webhooks.
    fn is_handshake(&mut self, text: &str) {
        let of_webhooks = ["delivery id", "event type"];
        self.steps.retain(|step| !of_webhooks.contains(&step.what));
        self.note("handshake", text.to_owned());
    }

    fn good(&mut self, what: &'static str, text: String) {
        self.steps.push(step(Mark::Good, what, text));
    }

    fn bad(&mut self, what: &'static str, text: String) {
        self.steps.push(step(Mark::Bad, what, text));
    }

    fn note(&mut self, what: &'static str, text: String) {
        self.steps.push(step(Mark::Note, what, text));
    }
}

#[cfg(test)]
mod tests;
