//! What was asked for, in a file, so that a run that was killed goes on and asks for nothing twice.

use crate::failure::Failure;
use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// A longer file is none of ours.
const FILE_BYTES_MAX: u64 = 64 << 20;
const VERSION: u32 = 1;

/// What was asked for lately.
#[derive(Debug)]
pub(super) struct State {
    asked: Asked,
    /// None: nothing is written.
    path: Option<PathBuf>,
    /// Held for as long as the process runs.
    _lock: Option<File>,
}

/// Source → GUID → when, milliseconds since the Unix epoch.
type Asked = BTreeMap<String, BTreeMap<String, i64>>;

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    asked: Asked,
}

// === impl State ===

impl State {
    /// Reads the file, if there is one, and keeps other runs off it. What was asked for before `from_ms` is forgotten. With
    /// `read_only` nothing is written, now or later.
    ///
    /// # Errors
    /// [`Failure::Config`] when the file is none of ours or can not be read; [`Failure::Unavailable`] when another run has it.
    pub(super) fn open(
        path: Option<&Path>,
        from_ms: i64,
        read_only: bool,
    ) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self::none());
        };
        let lock = if read_only { None } else { Some(lock(path)?) };
        let mut asked = read(path).map_err(|message| {
            Failure::config("--state", format!("{}: {message}", path.display()))
        })?;
        for of_source in asked.values_mut() {
            of_source.retain(|_, at_ms| *at_ms >= from_ms);
        }
        Ok(Self {
            asked,
            path: (!read_only).then(|| path.to_path_buf()),
            _lock: lock,
        })
    }

    /// Remembers nothing beyond this run.
    fn none() -> Self {
        Self {
            asked: Asked::new(),
            path: None,
            _lock: None,
        }
    }

    pub(super) fn asked_at_ms(&self, source: &str, guid: &str) -> Option<i64> {
        self.asked.get(source)?.get(guid).copied()
    }

    /// Notes, durably, that a webhook is about to be asked for. Before and not after: between a request and its note the
    /// process may end.
    ///
    /// # Errors
    /// When the file can not be written; then nothing may be asked for.
    pub(super) fn note(&mut self, source: &str, guid: &str, now_ms: i64) -> Result<(), Failure> {
        let of_source = self.asked.entry(source.to_owned()).or_default();
        of_source.insert(guid.to_owned(), now_ms);
        self.write()
    }

    /// It was certainly not asked for.
    ///
    /// # Errors
    /// As [`Self::note`].
    pub(super) fn forget(&mut self, source: &str, guid: &str) -> Result<(), Failure> {
        if let Some(of_source) = self.asked.get_mut(source) {
            of_source.remove(guid);
        }
        self.write()
    }

    fn write(&self) -> Result<(), Failure> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        replace(path, &self.asked)
            .map_err(|error| Failure::Fatal(format!("can not write {}: {error}", path.display())))
    }
}

/// The file itself is replaced with each note, so a lock on it would be lost.
fn lock(path: &Path) -> Result<File, Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let wrong = |error: io::Error| {
        let message = format!("can not write beside {}: {error}", path.display());
        Failure::config("--state", message)
    };
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(name);
    let file = file.map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::Unavailable(format!(
            "another run has {}",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(wrong(error)),
    }
}

fn read(path: &Path) -> Result<Asked, String> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Asked::new()),
        Err(error) => return Err(error.to_string()),
    };
    // Opening a pipe would wait for its writer.
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err("is not a file of this command".to_owned());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    match serde_json::from_slice(&bytes) {
        Ok(Text {
            version: VERSION,
            asked,
        }) => Ok(asked),
        Ok(Text { version, .. }) => Err(format!(
            "has version {version}, this binary knows {VERSION}"
        )),
        Err(error) => Err(format!("is not a file of this command: {error}")),
    }
}

/// All or nothing, also across a loss of power.
fn replace(path: &Path, asked: &Asked) -> io::Result<()> {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let text = Text {
        version: VERSION,
        asked: asked.clone(),
    };
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(&serde_json::to_vec(&text)?)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_to_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let mut state = State::open(Some(&path), 0, false).unwrap();
        state.note("github", "a", 10).unwrap();
        state.note("github", "b", 20).unwrap();
        state.note("other", "a", 30).unwrap();
        state.forget("github", "b").unwrap();
        drop(state);
        let state = State::open(Some(&path), 10, false).unwrap();
        let at = |source: &str, guid: &str| state.asked_at_ms(source, guid);
        assert_eq!(at("github", "a"), Some(10));
        assert_eq!(at("github", "b"), None);
        assert_eq!(at("other", "a"), Some(30));
        drop(state);
        let state = State::open(Some(&path), 11, false).unwrap();
        assert_eq!(state.asked_at_ms("github", "a"), None);
    }

    #[test]
    fn one_run_at_a_time_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let held = State::open(Some(&path), 0, false).unwrap();
        let second = State::open(Some(&path), 0, false);
        assert!(matches!(second, Err(Failure::Unavailable(_))), "{second:?}");
        assert!(State::open(Some(&path), 0, true).is_ok(), "a look is free");
        drop(held);
        assert!(State::open(Some(&path), 0, false).is_ok());
    }

    #[test]
    fn a_dry_run_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let mut state = State::open(Some(&path), 0, true).unwrap();
        state.note("github", "a", 10).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        for text in ["", "hello", "{}", r#"{"version":2,"asked":{}}"#] {
            fs::write(&path, text).unwrap();
            let refused = State::open(Some(&path), 0, false);
            assert!(matches!(refused, Err(Failure::Config(_))), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let nowhere = dir.path().join("absent").join("state");
        let refused = State::open(Some(&nowhere), 0, false);
        assert!(matches!(refused, Err(Failure::Config(_))), "{refused:?}");
    }
}
