//! Loading the one config file, and the form in which every crate reports a mistake in it.
//!
//! Three layers, the later one wins: defaults that the binary carries, the file, variables such as
//! `FENCEPOST_LOG__KIND` (a double underscore splits the keys; a variable without one is no setting, so that what an
//! orchestrator injects for a service called `fencepost` does no harm). A key that nobody knows is a mistake.

mod blame;
mod place;

use blame::{culprit, mend};
use figment::{
    Figment, Metadata, Profile, Provider,
    error::{Actual, Kind},
    providers::{Format, Toml},
    value::{Dict, Map, Value},
};
use place::Places;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Prefix of the variables that are settings.
pub const ENV_PREFIX: &str = "FENCEPOST_";

/// Nobody reads more of them at once.
const PROBLEMS_MAX: usize = 50;

/// A mistake in the config, at a key path such as `destinations.billing.retry.cap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Dotted key path; empty when the mistake has none (file missing, syntax).
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Loads a config: `defaults_toml`, then the file at `path`, then `FENCEPOST_*` variables.
///
/// # Errors
/// Every mistake that can be told apart, not only the first one: unreadable file, syntax (with line and column), wrong
/// type, missing and unknown keys.
pub fn load<T: DeserializeOwned>(
    path: Option<&Path>,
    defaults_toml: &str,
) -> Result<T, Vec<Problem>> {
    let file = match path {
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => Some((path.to_path_buf(), text)),
            Err(error) => {
                let message = format!("can not read {}: {error}", path.display());
                return Err(vec![Problem::new("", message)]);
            }
        },
        None => None,
    };
    let variables: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    read(file, defaults_toml, &variables)
}

/// [`load`] over plain values: the file's path and text, and variables.
///
/// # Errors
/// See [`load`].
pub fn read<T: DeserializeOwned>(
    file: Option<(PathBuf, String)>,
    defaults_toml: &str,
    variables: &[(String, String)],
) -> Result<T, Vec<Problem>> {
    let places = Places::new(file, settings(variables)).map_err(|problem| vec![problem])?;
    let defaults = Figment::from(Toml::string(defaults_toml));
    let merged = defaults
        .clone()
        .merge(Toml::string(places.text()))
        .merge(Variables(places.settings()));
    let (Ok(defaults), Ok(mut value)) = (defaults.extract::<Value>(), merged.extract::<Value>())
    else {
        return Err(vec![Problem::new(
            "",
            "the file and its defaults can not be merged",
        )]);
    };

    // Serde stops at the first mistake. So mend each one in the value and go on until nothing new comes up.
    let mut problems: Vec<Problem> = Vec::new();
    let mut mended: Vec<Vec<String>> = Vec::new();
    loop {
        let error = match value.deserialize::<T>() {
            Ok(config) if problems.is_empty() => return Ok(config),
            Ok(_) => return Err(problems),
            Err(error) => error,
        };
        let path = culprit::<T>(&value, &error);
        if problems.len() >= PROBLEMS_MAX {
            return Err(problems);
        }
        if !mended.contains(&path) {
            let message = format!("{}{}", explain(&error.kind), places.describe(&path));
            problems.push(Problem::new(path.join("."), message));
        }
        // What was taken away may now be missing: then its table goes too, and so on upwards.
        let mut wrong = path.as_slice();
        while mended.iter().any(|path| path == wrong) || !mend(&mut value, wrong, &defaults) {
            mended.push(wrong.to_vec());
            let Some((_, parents)) = wrong.split_last() else {
                return Err(problems);
            };
            wrong = parents;
        }
        mended.push(wrong.to_vec());
    }
}

/// Key path and value of every variable that is a setting.
fn settings(variables: &[(String, String)]) -> Vec<(Vec<String>, String, Value)> {
    let mut settings = Vec::new();
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        if !rest.contains("__") {
            continue;
        }
        let path: Vec<_> = rest.to_lowercase().split("__").map(str::to_owned).collect();
        if path.iter().all(|key| !key.is_empty()) {
            let Ok(value) = text.parse::<Value>();
            settings.push((path, name.clone(), value));
        }
    }
    settings.sort_by(|a, b| a.1.cmp(&b.1));
    settings
}

fn explain(kind: &Kind) -> String {
    match kind {
        Kind::UnknownField(found, allowed) => {
            let meant = closest(found, allowed)
                .map_or_else(String::new, |near| format!("did you mean `{near}`? "));
            format!("unknown key; {meant}allowed: {}", listed(allowed))
        }
        Kind::UnknownVariant(found, allowed) => {
            format!("`{found}` is not one of {}", listed(allowed))
        }
        Kind::MissingField(_) => "missing".to_owned(),
        // Of a wrong type the value says nothing, and it may be a secret that was written in the place of its name.
        Kind::InvalidType(Actual::Str(_), expected) => {
            format!("expected {}, found a string", in_words(expected))
        }
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            let expected = in_words(expected);
            let found = found.to_string().replace("unsigned int", "integer");
            format!(
                "expected {expected}, found {}",
                found.replace("signed int", "integer")
            )
        }
        Kind::Message(_)
        | Kind::InvalidLength(..)
        | Kind::DuplicateField(_)
        | Kind::ISizeOutOfRange(_)
        | Kind::USizeOutOfRange(_)
        | Kind::Unsupported(_)
        | Kind::UnsupportedKey(..) => kind.to_string(),
    }
}

/// A type as somebody knows it who writes TOML.
fn in_words(expected: &str) -> String {
    match expected {
        "u8" => "a whole number from 0 to 255".to_owned(),
        "u16" => "a whole number from 0 to 65535".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u64" | "usize" => "a whole number from 0 on".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        table if table.starts_with("struct ") => "a table".to_owned(),
        other => other.to_owned(),
    }
}

fn listed(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() {
        "no keys here".to_owned()
    } else {
        quoted.join(", ")
    }
}

/// The allowed name that differs from `found` in at most a third of its letters.
fn closest<'a>(found: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let limit = (found.chars().count() / 3).max(1);
    allowed
        .iter()
        .map(|name| (distance(found, name), *name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((other, above_left), above) in b.iter().zip(&row).zip(row.iter().skip(1)) {
            let left = next.last().copied().unwrap_or_default();
            let substitute = above_left + usize::from(letter != *other);
            next.push(substitute.min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// The settings from variables, as a layer of the config.
struct Variables<'a>(&'a [(Vec<String>, String, Value)]);

impl Provider for Variables<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named("environment variables")
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        let mut all = Figment::new();
        for (path, _, value) in self.0 {
            let nested = figment::util::nest(&path.join("."), value.clone());
            if let Some(dict) = nested.into_dict() {
                all = all.merge(figment::providers::Serialized::defaults(dict));
            }
        }
        all.data()
    }
}

// === impl Problem ===

impl Problem {
    /// A problem at `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.key, self.message)
    }
}

#[cfg(test)]
mod tests;
