//! Requests by which a sender tries an endpoint out, said as data. [`crate::handshake`] answers them.

use serde::Deserialize;
use std::collections::BTreeMap;

/// A request that is no webhook and wants an answer of its own. Exactly one of `json`, `form` and `query` says what it is known
/// by: the value there is `equals`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handshake {
    /// Dotted path of the JSON body (a string or an integer).
    #[serde(default)]
    pub json: Option<String>,
    /// Field of a form body.
    #[serde(default)]
    pub form: Option<String>,
    /// Parameter of the query of a GET request. Nothing of such a request is signed, so it takes a `token_query`.
    #[serde(default)]
    pub query: Option<String>,
    /// The value that makes it this handshake.
    pub equals: String,
    /// Query parameter that must be the source's `handshake_token`.
    #[serde(default)]
    pub token_query: Option<String>,
    /// The sender does not sign it. Its answer must tell nothing; without this it is answered only when rightly signed.
    #[serde(default)]
    pub unsigned: bool,
    /// HTTP status of the answer, 200 to 299.
    #[serde(default = "ok")]
    pub status: u16,
    /// What is answered.
    pub reply: Reply,
}

/// The body of an answer to a handshake.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Nothing.
    Empty,
    /// This JSON text.
    Constant(String),
    /// The value at a dotted path of the JSON body, as plain text.
    EchoJson(String),
    /// The value of a query parameter, as plain text.
    EchoQuery(String),
    /// A JSON object.
    Object(BTreeMap<String, Value>),
}

/// A value of a JSON object in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// The text at a dotted path of the JSON body.
    Json(String),
    /// HMAC-SHA256 of the text at a dotted path of the JSON body, made with the secret that the request was signed with, as
    /// hexadecimal.
    HmacOfJson(String),
}

fn ok() -> u16 {
    200
}
