//! The whole config: the sections of the crates under one roof.

use crate::reconcile::config::ReconcileConfig;
use dedup_store::config::StoreConfig;
use dispatcher::{DestinationConfig, DispatcherConfig, RouteConfig};
use event_log::config::LogConfig;
use ingest::{IngestConfig, SourceConfig};
use runtime::{AdminConfig, Problem, TelemetryConfig};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Defaults, and the reference of every setting.
pub(crate) const DEFAULT_TOML: &str = include_str!("default.toml");

/// The file that is read when none is named.
const FILE: &str = "fencepost.toml";

/// Everything that can be set. `default.toml` explains it.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub log: LogConfig,
    pub store: StoreConfig,
    pub ingest: IngestConfig,
    #[serde(default)]
    pub sources: BTreeMap<String, SourceConfig>,
    pub dispatcher: DispatcherConfig,
    #[serde(default)]
    pub destinations: BTreeMap<String, DestinationConfig>,
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    /// By the name of its source.
    #[serde(default)]
    pub reconcile: BTreeMap<String, ReconcileConfig>,
    pub telemetry: TelemetryConfig,
    pub admin: AdminConfig,
}

/// A config and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub config: Config,
    /// The file; none when there is only the defaults and variables.
    pub file: Option<PathBuf>,
    /// Relative paths of secrets start here.
    pub base: PathBuf,
}

/// Loads the file at `path`, or `./fencepost.toml` when there is one and none is named.
///
/// # Errors
/// Every mistake in its form. What the values mean is for `fencepost check`.
pub(crate) fn load(path: Option<&Path>) -> Result<Loaded, Vec<Problem>> {
    let file = match path {
        Some(path) => Some(path.to_path_buf()),
        None => Some(PathBuf::from(FILE)).filter(|path| path.exists()),
    };
    let mut config: Config = runtime::config::load(file.as_deref(), DEFAULT_TOML)?;
    let parent = file.as_deref().and_then(Path::parent);
    // The parent of a bare file name is the empty path.
    let base = parent
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    config.resolve(base);
    Ok(Loaded {
        config,
        base: base.to_path_buf(),
        file,
    })
}

// === impl Config ===

impl Config {
    /// Relative directories start at the config file, as its secrets do: wherever a command is run from, it finds the same
    /// claims. An empty store found by accident would deliver everything again.
    fn resolve(&mut self, base: &Path) {
        // An empty one stays: it is a mistake, which the check can name only as long as it is seen.
        let resolve = |dir: &mut PathBuf| {
            if !dir.as_os_str().is_empty() {
                *dir = base.join(&*dir);
            }
        };
        if let LogConfig::Embedded(log) = &mut self.log {
            resolve(&mut log.dir);
        }
        if let StoreConfig::Embedded(store) = &mut self.store {
            resolve(&mut store.dir);
        }
        if let Some(spool) = &mut self.ingest.spool {
            resolve(&mut spool.dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Config {
        match runtime::config::read(
            Some(("test.toml".into(), text.to_owned())),
            DEFAULT_TOML,
            &[],
        ) {
            Ok(config) => config,
            Err(problems) => panic!("{problems:?}"),
        }
    }

    #[test]
    fn the_reference_states_the_real_defaults() {
        let config = read("");
        assert_eq!(config.log, LogConfig::default());
        assert_eq!(config.store, StoreConfig::Embedded(Default::default()));
        assert_eq!(config.ingest, IngestConfig::default());
        assert_eq!(config.dispatcher, DispatcherConfig::default());
        assert_eq!(config.telemetry, TelemetryConfig::default());
        assert_eq!(config.admin, AdminConfig::default());
    }

    #[test]
    fn directories_start_at_the_config_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("my.toml");
        std::fs::write(
            &file,
            "[store]\nkind = \"embedded\"\ndir = \"/elsewhere\"\n",
        )
        .unwrap();
        let config = load(Some(&file)).unwrap().config;
        let LogConfig::Embedded(log) = config.log else {
            panic!("not embedded")
        };
        assert_eq!(log.dir, dir.path().join("fencepost-data"));
        let StoreConfig::Embedded(store) = config.store else {
            panic!("not embedded")
        };
        assert_eq!(store.dir, Path::new("/elsewhere"));
    }

    /// Settings that are commented out start with `#` and no space. A table that stands there twice is an alternative.
    #[test]
    fn what_is_commented_out_in_the_reference_is_valid() {
        let mut tables: Vec<(String, String)> = Vec::new();
        for line in DEFAULT_TOML.lines() {
            let line = match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') => rest,
                _ => line,
            };
            if line.starts_with('[') {
                tables.push((line.to_owned(), String::new()));
            } else if let Some((_, text)) = tables.last_mut() {
                text.push_str(line);
                text.push('\n');
            }
        }
        let text = |alternative: &dyn Fn(&str) -> bool| -> String {
            let chosen = tables.iter().filter(|(head, text)| {
                let twice = tables.iter().filter(|(other, _)| other == head).count() > 1;
                !twice || alternative(text)
            });
            chosen
                .map(|(head, text)| format!("{head}\n{text}"))
                .collect()
        };
        let is_embedded = |text: &str| text.starts_with("kind = \"embedded\"");
        let embedded = read(&text(&is_embedded));
        assert_eq!(embedded.log, LogConfig::default());
        assert_eq!(embedded.store, StoreConfig::Embedded(Default::default()));
        let large = read(&text(&|text| !is_embedded(text)));
        assert!(matches!(large.log, LogConfig::Kafka(_)));
        assert!(matches!(large.store, StoreConfig::Cql(_)));
        assert!(!large.sources.is_empty() && !large.destinations.is_empty());
        for (name, source) in &large.sources {
            assert_eq!(source.check(&format!("sources.{name}")), []);
        }
        assert!(!large.routes.is_empty() && !large.reconcile.is_empty());
    }
}
