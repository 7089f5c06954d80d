//! Where a key was set: in which line of the file, or by which variable.

use super::Problem;
use figment::value::Value;
use std::path::PathBuf;
use toml_edit::{ImDocument, Item};

/// Everything that was set on top of the defaults, and where.
#[derive(Debug)]
pub(super) struct Places {
    file: Option<(PathBuf, ImDocument<String>)>,
    settings: Vec<(Vec<String>, String, Value)>,
}

// === impl Places ===

impl Places {
    /// Parses the file once for the positions of its keys. The error is a mistake in the syntax.
    pub(super) fn new(
        file: Option<(PathBuf, String)>,
        settings: Vec<(Vec<String>, String, Value)>,
    ) -> Result<Self, Problem> {
        let Some((path, text)) = file else {
            return Ok(Self {
                file: None,
                settings,
            });
        };
        match ImDocument::parse(text.clone()) {
            Ok(document) => Ok(Self {
                file: Some((path, document)),
                settings,
            }),
            Err(error) => {
                let (line, column) = position(&text, error.span().map_or(0, |span| span.start));
                let cause = error.message().lines().collect::<Vec<_>>().join(", ");
                let place = format!("{}, line {line}, column {column}", path.display());
                Err(Problem::new("", format!("{place}: {cause}")))
            }
        }
    }

    pub(super) fn text(&self) -> &str {
        self.file
            .as_ref()
            .map_or("", |(_, document)| document.raw())
    }

    pub(super) fn settings(&self) -> &[(Vec<String>, String, Value)] {
        &self.settings
    }

    /// ` (fencepost.toml, line 3)` or ` (FENCEPOST_LOG__KIND)`; nothing when the key is set nowhere. For a key that is
    /// missing, the place of the table that lacks it.
    pub(super) fn describe(&self, path: &[String]) -> String {
        if let Some((_, name, _)) = self
            .settings
            .iter()
            .find(|(set, _, _)| path.starts_with(set) || set.starts_with(path))
        {
            return format!(" ({name})");
        }
        let Some((file, document)) = &self.file else {
            return String::new();
        };
        match offset(document.as_item(), path) {
            Some(at) => {
                let (line, _) = position(document.raw(), at);
                format!(" ({}, line {line})", file.display())
            }
            None => String::new(),
        }
    }
}

/// Offset of the deepest key of `path` that the document holds.
fn offset(root: &Item, path: &[String]) -> Option<usize> {
    let mut here = root;
    let mut found = None;
    for key in path {
        let next = match key.parse::<usize>() {
            Ok(index) if here.is_array() || here.is_array_of_tables() => {
                let next = here.get(index);
                // An element of an array of values is no item; its own span is all there is.
                let span = match here.as_array().and_then(|items| items.get(index)) {
                    Some(value) => value.span(),
                    None => next.and_then(Item::span),
                };
                found = span.map(|span| span.start).or(found);
                next
            }
            _ => {
                let table = here.as_table_like();
                let span = table
                    .and_then(|table| table.get_key_value(key))
                    .and_then(|(key, item)| key.span().or_else(|| item.span()));
                found = span.map(|span| span.start).or(found);
                here.get(key)
            }
        };
        let Some(next) = next else { break };
        here = next;
    }
    found
}

/// Line and column of a byte offset, from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .map_or(0, |rest| rest.chars().count())
        + 1;
    (line, column)
}
