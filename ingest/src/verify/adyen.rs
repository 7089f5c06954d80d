//! Adyen's standard webhooks: HMAC-SHA256 over eight fields of every item of the JSON body, joined by `:`.
//!
//! Facts: <https://docs.adyen.com/development-resources/webhooks/verify-hmac-signatures> and the `HMACValidator` of Adyen's
//! libraries. The key is hexadecimal. Nothing is escaped; a `:` can therefore stand in one field only, the merchant's own
//! reference, and is refused in the others.
//!
//! **What the signature does not say.** Only `pspReference`, `originalReference`, `merchantAccountCode`,
//! `merchantReference`, `amount`, `eventCode` and `success` are signed. `live`, `eventDate`, `reason`, `paymentMethod` and
//! all of `additionalData` can be changed by whoever has seen a request. There is no time of signing either; the delivery
//! id is made of signed fields ([`delivery_id`]), so that a repeat is a duplicate.

use super::{Refusal, Verified, custom::slot_of, key::mac};
use crate::{
    Request,
    rule::Algorithm,
    sign::{Made, SignError, Unsigned},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use runtime::Secret;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use subtle::ConstantTimeEq;

/// Items of one request: Adyen sends one, with SOAP up to six.
const ITEMS_MAX: usize = 64;

/// As much of the body as is read before it is verified. A key that stands twice is an error.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(borrow, default)]
    notification_items: Vec<Wrapped<'a>>,
}

#[derive(Deserialize)]
struct Wrapped<'a> {
    #[serde(borrow, rename = "NotificationRequestItem")]
    item: Item<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    #[serde(borrow, default)]
    psp_reference: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    original_reference: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    merchant_account_code: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    merchant_reference: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    amount: Option<Amount<'a>>,
    #[serde(borrow, default)]
    event_code: Option<Cow<'a, str>>,
    success: Success,
    #[serde(borrow, default)]
    additional_data: Option<AdditionalData<'a>>,
}

#[derive(Deserialize)]
struct Amount<'a> {
    value: Option<i64>,
    #[serde(borrow, default)]
    currency: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdditionalData<'a> {
    #[serde(borrow, default)]
    hmac_signature: Option<Cow<'a, str>>,
}

/// Written as a text or as a truth value.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Success {
    Value(bool),
    Text(Spelled),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Spelled {
    True,
    False,
}

/// Checks every item of a request of Adyen's; one secret must have signed them all. The time of signing is not known.
///
/// # Errors
/// See [`Refusal`].
pub(crate) fn verify(secrets: &[Secret], request: &Request<'_>) -> Result<Verified, Refusal> {
    let mut signed = Vec::new();
    for item in items(request.body)? {
        let data = item.additional_data.as_ref();
        let signature = data.and_then(|data| data.hmac_signature.as_deref());
        let signature = signature.ok_or(Refusal::Unsigned)?;
        let Ok(signature) = STANDARD.decode(signature) else {
            return Err(Refusal::Mismatch);
        };
        signed.push((item.signed()?, signature));
    }
    let slot = slot_of(secrets, request.received_at_ms, |secret| {
        let Ok(key) = hex::decode(secret) else {
            return false;
        };
        let fits = |found, (text, signature): &(String, Vec<u8>)| {
            let made = mac(Algorithm::HmacSha256, &key, &[text.as_bytes()]);
            made.is_some_and(|made| made.ct_eq(signature).into()) & found
        };
        signed.iter().fold(true, fits)
    })?;
    Ok(Verified { slot })
}

/// `pspReference:eventCode:success` of the item; of several items a hash of all that is signed.
///
/// # Errors
/// `Unsigned` and `Malformed`.
pub(crate) fn delivery_id(request: &Request<'_>) -> Result<String, Refusal> {
    let items = items(request.body)?;
    if let [item] = items.as_slice() {
        let text = |field: &Option<Cow<'_, str>>| field.as_deref().unwrap_or_default().to_owned();
        let (psp_reference, event_code) = (text(&item.psp_reference), text(&item.event_code));
        let success = item.success.text();
        return Ok(format!("{psp_reference}:{event_code}:{success}"));
    }
    let mut hash = Sha256::new();
    for item in items {
        let signed = item.signed()?;
        hash.update((signed.len() as u64).to_be_bytes());
        hash.update(signed);
    }
    Ok(format!("sha256-{}", hex::encode(hash.finalize())))
}

/// Puts a signature into every item of the body as Adyen would.
///
/// # Errors
/// See [`SignError`].
pub(crate) fn sign(secret: &[u8], unsigned: &Unsigned<'_>) -> Result<Made, SignError> {
    let body = unsigned.body;
    let unknown = |what: &str| SignError::Unknown(what.to_owned());
    let Ok(key) = hex::decode(secret) else {
        return Err(SignError::Key(super::KeyError::Encoding("hexadecimal")));
    };
    let signed: Vec<String> = items(body)
        .and_then(|items| items.iter().map(Item::signed).collect())
        .map_err(|refusal| unknown(&refusal.to_string()))?;
    let mut json: serde_json::Value = match serde_json::from_slice(body) {
        Ok(json) => json,
        Err(_) => return Err(unknown("JSON")),
    };
    for (at, text) in signed.iter().enumerate() {
        let made =
            mac(Algorithm::HmacSha256, &key, &[text.as_bytes()]).ok_or(SignError::NoSecret)?;
        let item = json
            .pointer_mut(&format!("/notificationItems/{at}/NotificationRequestItem"))
            .and_then(serde_json::Value::as_object_mut)
            .ok_or_else(|| unknown("an item"))?;
        let data = item
            .entry("additionalData")
            .or_insert_with(|| serde_json::json!({}))
            .as_object_mut()
            .ok_or_else(|| unknown("`additionalData`"))?;
        data.insert("hmacSignature".to_owned(), STANDARD.encode(made).into());
    }
    Ok(Made {
        query: None,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: json.to_string().into_bytes(),
    })
}

// === impl Item ===

impl Item<'_> {
    /// The signed text. Fields that are not there count as empty.
    fn signed(&self) -> Result<String, Refusal> {
        let amount = self.amount.as_ref();
        let value = amount.and_then(|amount| amount.value);
        let value = value.map_or_else(String::new, |value| value.to_string());
        let currency = amount.and_then(|amount| amount.currency.as_deref());
        let fields = [
            ("pspReference", self.psp_reference.as_deref()),
            ("originalReference", self.original_reference.as_deref()),
            ("merchantAccountCode", self.merchant_account_code.as_deref()),
            (MERCHANT_REFERENCE, self.merchant_reference.as_deref()),
            ("amount.value", Some(value.as_str())),
            ("amount.currency", currency),
            ("eventCode", self.event_code.as_deref()),
            ("success", Some(self.success.text())),
        ];
        let mut texts = Vec::with_capacity(fields.len());
        for (name, text) in fields {
            let text = text.unwrap_or_default();
            if text.contains(':') && name != MERCHANT_REFERENCE {
                return Err(Refusal::Malformed(format!("`{name}`")));
            }
            texts.push(text);
        }
        Ok(texts.join(":"))
    }
}

const MERCHANT_REFERENCE: &str = "merchantReference";

// === impl Success ===

impl Success {
    fn text(self) -> &'static str {
        match self {
            Self::Value(true) | Self::Text(Spelled::True) => "true",
            Self::Value(false) | Self::Text(Spelled::False) => "false",
        }
    }
}

/// The items of a body, at least one.
fn items(body: &[u8]) -> Result<Vec<Item<'_>>, Refusal> {
    let malformed = || Refusal::Malformed("`notificationItems`".to_owned());
    let Ok(Body { notification_items }) = serde_json::from_slice::<Body<'_>>(body) else {
        return Err(malformed());
    };
    match notification_items.len() {
        0 => Err(Refusal::Unsigned),
        1..=ITEMS_MAX => Ok(notification_items.into_iter().map(|it| it.item).collect()),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests;
