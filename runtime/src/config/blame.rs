//! Which key a deserialization error is about, and how to go on without it.

use figment::{
    Error,
    error::Kind,
    value::{Dict, Value},
};
use serde::de::DeserializeOwned;

/// The path of the key that is to blame.
///
/// Inside of a table whose type depends on one of its keys (`kind`), serde forgets where it was. There a key is to blame
/// when without it the error is gone or another one.
pub(super) fn culprit<T: DeserializeOwned>(value: &Value, error: &Error) -> Vec<String> {
    let mut path = error.path.clone();
    let mut rest = value.clone();
    while let Some(key) = guilty_key::<T>(&mut rest, &path, error) {
        path.push(key);
    }
    if let Kind::MissingField(field) = &error.kind {
        path.push(field.to_string());
    } else if let Kind::UnknownField(field, _) = &error.kind
        && path.last() != Some(field)
    {
        path.push(field.clone());
    }
    path
}

fn guilty_key<T: DeserializeOwned>(
    value: &mut Value,
    path: &[String],
    error: &Error,
) -> Option<String> {
    let keys: Vec<String> = dict_at(value, path)?.keys().cloned().collect();
    let mut required = Vec::new();
    for key in keys {
        let Some(other) = without::<T>(value, path, &[&key]) else {
            return Some(key);
        };
        if matches!(&other.kind, Kind::MissingField(field) if *field == key) {
            required.push(key);
        } else if other.kind != error.kind || other.path != error.path {
            return Some(key);
        }
    }
    if matches!(error.kind, Kind::MissingField(_) | Kind::Message(_)) {
        return None;
    }
    // A required key is missed only when nothing was wrong before it. The key that tells the type is missed before anything
    // else; it is the one that is still missed when all of them are gone.
    if required.len() > 1 {
        let all: Vec<&str> = required.iter().map(String::as_str).collect();
        if let Some(Kind::MissingField(first)) = without::<T>(value, path, &all).map(|e| e.kind) {
            required.retain(|key| *key != first);
        }
    }
    required.into_iter().next()
}

/// The error that is left when `keys` are taken out of the table at `path`, which is restored.
fn without<T: DeserializeOwned>(
    value: &mut Value,
    path: &[String],
    keys: &[&str],
) -> Option<Error> {
    let dict = dict_at(value, path)?;
    let taken: Vec<_> = keys
        .iter()
        .filter_map(|key| dict.remove_entry(*key))
        .collect();
    let error = value.deserialize::<T>().err();
    dict_at(value, path)?.extend(taken);
    error
}

/// Puts the default in the place of a wrong value, or takes it away. False when nothing was there, or when taking an array's
/// element away would shift the numbers of the others.
pub(super) fn mend(value: &mut Value, path: &[String], defaults: &Value) -> bool {
    let Some((key, parents)) = path.split_last() else {
        return false;
    };
    let default = at(&mut defaults.clone(), path).map(|default| default.clone());
    let Some(dict) = dict_at(value, parents) else {
        return false;
    };
    match default {
        Some(default) => dict.insert(key.clone(), default).is_some(),
        None => dict.remove(key).is_some(),
    }
}

fn dict_at<'a>(value: &'a mut Value, path: &[String]) -> Option<&'a mut Dict> {
    match at(value, path)? {
        Value::Dict(_, dict) => Some(dict),
        Value::String(..)
        | Value::Char(..)
        | Value::Bool(..)
        | Value::Num(..)
        | Value::Empty(..)
        | Value::Array(..) => None,
    }
}

fn at<'a>(value: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    let mut here = value;
    for key in path {
        here = if let Value::Dict(_, dict) = here {
            dict.get_mut(key)?
        } else if let Value::Array(_, items) = here {
            items.get_mut(key.parse::<usize>().ok()?)?
        } else {
            return None;
        };
    }
    Some(here)
}
