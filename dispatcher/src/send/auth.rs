//! Credentials and static headers of a destination, with the secrets as their files are now.

use super::{
    client::Place,
    failure::Failure,
    oauth2::{Lent, OAuth2},
};
use crate::config::{DestinationConfig, HeaderText};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use runtime::{Problem, Secret, SecretRef, addresses::Dns};
use tokio::time::Instant;

/// What is said in `authorization`.
#[derive(Debug)]
pub(super) enum Auth {
    None,
    Bearer(Secret),
    Basic { user: String, password: Secret },
    OAuth2(Box<OAuth2>),
}

/// Headers that the config names.
#[derive(Debug)]
pub(super) struct Statics(Vec<(HeaderName, Static)>);

#[derive(Debug)]
enum Static {
    Text(HeaderValue),
    Secret(Secret),
}

// === impl Auth ===

impl Auth {
    /// Reads what the config names.
    ///
    /// # Errors
    /// Every problem found, with its key path.
    pub(super) fn open(
        config: &DestinationConfig,
        place: Place<'_>,
        dns: &Dns,
    ) -> Result<Self, Vec<Problem>> {
        let Some(auth) = &config.auth else {
            return Ok(Self::None);
        };
        if let Some(oauth2) = &auth.oauth2 {
            let opened = OAuth2::open(config, oauth2, place, dns);
            return opened.map(|oauth2| Self::OAuth2(Box::new(oauth2)));
        }
        if let Some(basic) = &auth.basic {
            let key = format!("{}.auth.basic.password", place.key);
            return Ok(Self::Basic {
                user: basic.user.clone(),
                password: open(&basic.password, place, key, |_| true)?,
            });
        }
        let Some(bearer) = &auth.bearer else {
            return Ok(Self::None);
        };
        let key = format!("{}.auth.bearer", place.key);
        let good = |secret: &[u8]| HeaderValue::from_bytes(secret).is_ok();
        Ok(Self::Bearer(open(bearer, place, key, good)?))
    }

    /// Adds the credentials; gives back the token if one was lent.
    ///
    /// # Errors
    /// None could be had; the receiver was not asked.
    pub(super) async fn authorize(
        &self,
        headers: &mut HeaderMap,
        deadline: Instant,
    ) -> Result<Option<Lent>, Failure> {
        let unusable = |_| Failure::new("the secret of `auth` can not stand in a header");
        let (value, lent) = match self {
            Self::None => return Ok(None),
            Self::Bearer(token) => (token.with(bearer).map_err(unusable)?, None),
            Self::Basic { user, password } => {
                let value = password.with(|password| basic(user.as_bytes(), password));
                (value.map_err(unusable)?, None)
            }
            Self::OAuth2(oauth2) => {
                let lent = oauth2.token(deadline).await?;
                (lent.value.clone(), Some(lent))
            }
        };
        headers.insert(http::header::AUTHORIZATION, value);
        Ok(lent)
    }

    /// The receiver answered 401 to a token: it is not used again.
    pub(super) fn refused(&self, lent: &Lent) {
        if let Self::OAuth2(oauth2) = self {
            oauth2.refused(lent);
        }
    }
}

// === impl Statics ===

impl Statics {
    /// Reads what the config names.
    ///
    /// # Errors
    /// Every problem found, with its key path.
    pub(super) fn open(config: &DestinationConfig, place: Place<'_>) -> Result<Self, Vec<Problem>> {
        let (mut statics, mut problems) = (Vec::new(), Vec::new());
        for (name, text) in &config.headers {
            let key = format!("{}.headers.{name}", place.key);
            // What is no name or value is found by `DestinationConfig::check`.
            let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
                continue;
            };
            match text {
                HeaderText::Text(text) => {
                    let value = HeaderValue::from_str(text).ok();
                    statics.extend(value.map(|value| (name, Static::Text(value))));
                }
                HeaderText::Secret(secret) => {
                    let good = |secret: &[u8]| HeaderValue::from_bytes(secret).is_ok();
                    match open(secret, place, key, good) {
                        Ok(secret) => statics.push((name, Static::Secret(secret))),
                        Err(found) => problems.extend(found),
                    }
                }
            }
        }
        if problems.is_empty() {
            Ok(Self(statics))
        } else {
            Err(problems)
        }
    }

    /// Adds them, over those that are there.
    ///
    /// # Errors
    /// A secret has changed into something that can not stand in a header.
    pub(super) fn add(&self, headers: &mut HeaderMap) -> Result<(), Failure> {
        for (name, value) in &self.0 {
            let value = match value {
                Static::Text(value) => value.clone(),
                Static::Secret(secret) => secret.with(sensitive).map_err(|_unusable| {
                    Failure::new(format!("no usable secret for header `{name}`"))
                })?,
            };
            headers.insert(name.clone(), value);
        }
        Ok(())
    }
}

/// `Bearer <token>`.
pub(super) fn bearer(token: &[u8]) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    sensitive(&[b"Bearer ", token].concat())
}

/// RFC 7617.
pub(super) fn basic(
    user: &[u8],
    password: &[u8],
) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let encoded = STANDARD.encode([user, b":", password].concat());
    sensitive(format!("Basic {encoded}").as_bytes())
}

/// A value that Debug does not show.
fn sensitive(bytes: &[u8]) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_bytes(bytes)?;
    value.set_sensitive(true);
    Ok(value)
}

pub(super) fn open(
    secret: &SecretRef,
    place: Place<'_>,
    key: String,
    good: impl Fn(&[u8]) -> bool,
) -> Result<Secret, Vec<Problem>> {
    let secret = match Secret::open(secret, place.base) {
        Ok(secret) => secret,
        Err(error) => return Err(vec![Problem::new(key, error.to_string())]),
    };
    if secret.with(good) {
        Ok(secret)
    } else {
        let message = "has a character that a header can not have, such as a line end";
        Err(vec![Problem::new(key, message)])
    }
}
