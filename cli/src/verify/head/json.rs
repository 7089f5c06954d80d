//! `{ "Name": "value", "Name": ["value", "value"] }`, alone or as `headers` of an object, or of its `request` as GitHub's REST
//! API has it. A name that stands twice stands twice: what hides that would hide why a request is refused.

use super::{Head, NoHead};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// A value of the object.
enum Value {
    /// A text, number or truth value.
    Text(String),
    List(Vec<Self>),
    Object(Pairs),
    Nothing,
}

/// Names and values in order, equal ones too.
struct Pairs(Vec<(String, Value)>);

pub(super) fn parse(text: &[u8]) -> Result<Head, NoHead> {
    let pairs = match serde_json::from_slice(text) {
        Ok(Value::Object(pairs)) => pairs,
        Ok(Value::Text(_) | Value::List(_) | Value::Nothing) => {
            return Err(NoHead::at(1, "is not a JSON object"));
        }
        Err(error) => return Err(NoHead::at(error.line(), "is not JSON")),
    };
    let mut head = Head::default();
    for (name, value) in pairs.headers().0 {
        let refuse = || {
            let message = format!("the value of {name:?} is neither a text nor a list of texts");
            NoHead::at(1, message)
        };
        let texts = match value {
            Value::Text(text) => vec![text],
            Value::List(values) => values
                .into_iter()
                .map(|value| match value {
                    Value::Text(text) => Ok(text),
                    Value::List(_) | Value::Object(_) | Value::Nothing => Err(refuse()),
                })
                .collect::<Result<_, _>>()?,
            Value::Object(_) | Value::Nothing => return Err(refuse()),
        };
        for text in texts {
            head.add(name.as_bytes(), text.as_bytes(), 1)?;
        }
    }
    Ok(head)
}

// === impl Pairs ===

impl Pairs {
    /// The object below `request` and `headers`, where there is one.
    fn headers(mut self) -> Self {
        for key in ["request", "headers"] {
            let at = self
                .0
                .iter()
                .position(|(name, value)| name == key && matches!(value, Value::Object(_)));
            if let Some(at) = at
                && let (_, Value::Object(inner)) = self.0.swap_remove(at)
            {
                self = inner;
            }
        }
        self
    }
}

// === impl Value ===

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfAny;
        impl<'de> Visitor<'de> for OfAny {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Text(number.to_string()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Text(number.to_string()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(Value::Text(number.to_string()))
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
                Ok(Value::Text(truth.to_string()))
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Nothing)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = seq.next_element()? {
                    values.push(value);
                }
                Ok(Value::List(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Value::Object(Pairs(pairs)))
            }
        }
        deserializer.deserialize_any(OfAny)
    }
}
