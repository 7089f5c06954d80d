//! Secrets: named in the config, never written in it.

use crate::clock::monotonic_ms;
use secrecy::{ExposeSecret, SecretSlice};
use std::{
    fmt,
    io::Read,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

/// A longer file is no secret but a mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// How often a secret's file is looked at, milliseconds.
const CHECK_EVERY_MS: u64 = 1_000;

/// Where a secret stands: `{ env = "NAME" }` or `{ file = "path" }`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a place such as { env = \"NAME\" } or { file = \"path\" }"
)]
pub struct SecretRef {
    /// Name of an environment variable.
    #[serde(default)]
    pub env: Option<String>,
    /// Path of a file, relative to the config file's directory. One trailing newline is dropped.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The secret is not used after this instant (rotation).
    #[serde(default)]
    pub not_after: Option<jiff::Timestamp>,
}

/// A secret's current value. Debug shows nothing of it; clones share it.
#[derive(Clone)]
pub struct Secret {
    shared: Arc<Shared>,
    not_after_ms: Option<i64>,
}

struct Shared {
    /// Held only to copy or to swap the pointer.
    value: RwLock<Arc<SecretSlice<u8>>>,
    file: Option<Watched>,
}

struct Watched {
    path: PathBuf,
    check_every_ms: u64,
    /// When the next look at the file is due, on the monotonic clock.
    check_at_ms: AtomicU64,
    seen: RwLock<Seen>,
}

/// The file as it was last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    stamp: Option<Stamp>,
    /// The last look failed and was logged.
    warned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

/// A secret that can not be had. Never holds the secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SecretError {
    /// Neither or both of `env` and `file`.
    #[error("give exactly one of `env` and `file`")]
    Ambiguous,
    /// The variable or file is missing or can not be read.
    #[error("can not read {place}: {cause}")]
    Unreadable {
        /// Variable or path.
        place: String,
        /// Why.
        cause: String,
    },
    /// There, but empty or nothing but white space: verifying against an empty key would accept forgeries.
    #[error("{place} is empty")]
    Empty {
        /// Variable or path.
        place: String,
    },
}

// === impl Secret ===

impl Secret {
    /// A secret held in memory, for tests and the demo.
    pub fn from_bytes(value: impl Into<Vec<u8>>) -> Self {
        Self::new(value.into(), None, None)
    }

    /// Reads the secret that `place` names; relative paths start at `base`.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn open(place: &SecretRef, base: &Path) -> Result<Self, SecretError> {
        Self::open_checking(place, base, CHECK_EVERY_MS)
    }

    /// Calls `f` with the current value; a file that has changed is read again first. A file is looked at about once a
    /// second; when it has become unreadable or empty, the old value stays in use and a warning is logged.
    pub fn with<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        if let Some(file) = &self.shared.file
            && let Some(value) = file.changed()
        {
            *self
                .shared
                .value
                .write()
                .unwrap_or_else(PoisonError::into_inner) = value;
        }
        let value = self
            .shared
            .value
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        f(value.expose_secret())
    }

    /// Whether `not_after` has not passed at `now_ms`.
    pub fn usable_at(&self, now_ms: i64) -> bool {
        self.not_after_ms
            .is_none_or(|not_after_ms| now_ms <= not_after_ms)
    }

    fn open_checking(
        place: &SecretRef,
        base: &Path,
        check_every_ms: u64,
    ) -> Result<Self, SecretError> {
        let not_after_ms = place.not_after.map(jiff::Timestamp::as_millisecond);
        match (&place.env, &place.file) {
            (Some(name), None) => Ok(Self::new(read_env(name)?, not_after_ms, None)),
            (None, Some(path)) => {
                let path = base.join(path);
                let (value, stamp) = read_file(&path)?;
                let file = Watched {
                    path,
                    check_every_ms,
                    check_at_ms: AtomicU64::new(monotonic_ms().saturating_add(check_every_ms)),
                    seen: RwLock::new(Seen {
                        stamp: Some(stamp),
                        warned: false,
                    }),
                };
                Ok(Self::new(value, not_after_ms, Some(file)))
            }
            (None, None) | (Some(_), Some(_)) => Err(SecretError::Ambiguous),
        }
    }

    fn new(value: Vec<u8>, not_after_ms: Option<i64>, file: Option<Watched>) -> Self {
        let value = RwLock::new(Arc::new(SecretSlice::from(value)));
        Self {
            shared: Arc::new(Shared { value, file }),
            not_after_ms,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("value", &"[redacted]")
            .field("not_after_ms", &self.not_after_ms)
            .finish()
    }
}

// === impl Watched ===

impl Watched {
    /// The new value, when a look is due and the file has changed. Among racing callers one looks.
    fn changed(&self) -> Option<Arc<SecretSlice<u8>>> {
        let now_ms = monotonic_ms();
        let due_ms = self.check_at_ms.load(Ordering::Relaxed);
        if now_ms < due_ms {
            return None;
        }
        let next_ms = now_ms.saturating_add(self.check_every_ms);
        self.check_at_ms
            .compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
            .ok()?;

        let seen = *self.seen.read().unwrap_or_else(PoisonError::into_inner);
        let (now_seen, value) = match self.look(seen.stamp) {
            Ok(None) => (
                Seen {
                    warned: false,
                    ..seen
                },
                None,
            ),
            Ok(Some((value, stamp))) => {
                tracing::info!(path = %self.path.display(), "secret file read again");
                let value = Arc::new(SecretSlice::from(value));
                (
                    Seen {
                        stamp: Some(stamp),
                        warned: false,
                    },
                    Some(value),
                )
            }
            Err(error) => {
                if !seen.warned {
                    tracing::warn!(%error, "secret file kept at its old value");
                }
                // Without a stamp the file is read as soon as it can be, even when it comes back unchanged.
                (
                    Seen {
                        stamp: None,
                        warned: true,
                    },
                    None,
                )
            }
        };
        if now_seen != seen {
            *self.seen.write().unwrap_or_else(PoisonError::into_inner) = now_seen;
        }
        value
    }

    fn look(&self, seen: Option<Stamp>) -> Result<Option<(Vec<u8>, Stamp)>, SecretError> {
        let metadata = std::fs::metadata(&self.path).map_err(|e| unreadable(&self.path, &e))?;
        if seen == Some(Stamp::of(&metadata)) {
            return Ok(None);
        }
        read_file(&self.path).map(Some)
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
        }
    }
}

fn read_env(name: &str) -> Result<Vec<u8>, SecretError> {
    let place = || format!("environment variable {name}");
    let Some(value) = std::env::var_os(name) else {
        return Err(SecretError::Unreadable {
            place: place(),
            cause: "not set".to_owned(),
        });
    };
    let value = value.into_vec();
    if is_blank(&value) {
        return Err(SecretError::Empty { place: place() });
    }
    Ok(value)
}

/// The stamp is taken before the bytes: a write in between is seen by the next look.
fn read_file(path: &Path) -> Result<(Vec<u8>, Stamp), SecretError> {
    let refuse = |cause: &str| SecretError::Unreadable {
        place: path.display().to_string(),
        cause: cause.to_owned(),
    };
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path)
        .map_err(|e| unreadable(path, &e))?
        .is_file()
    {
        return Err(refuse("not a file"));
    }
    let file = std::fs::File::open(path).map_err(|e| unreadable(path, &e))?;
    let stamp = Stamp::of(&file.metadata().map_err(|e| unreadable(path, &e))?);
    let mut value = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut value)
        .map_err(|e| unreadable(path, &e))?;
    if value.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse("longer than 64 KiB"));
    }
    if value.last() == Some(&b'\n') {
        value.pop();
        if value.last() == Some(&b'\r') {
            value.pop();
        }
    }
    if is_blank(&value) {
        return Err(SecretError::Empty {
            place: path.display().to_string(),
        });
    }
    Ok((value, stamp))
}

/// Nobody means spaces or line ends to be a key: they are what is left of a template or of an editor.
fn is_blank(value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok_and(|text| text.trim().is_empty())
}

fn unreadable(path: &Path, error: &std::io::Error) -> SecretError {
    SecretError::Unreadable {
        place: path.display().to_string(),
        cause: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> SecretRef {
        SecretRef {
            env: None,
            file: Some(path.into()),
            not_after: None,
        }
    }

    fn value(secret: &Secret) -> Vec<u8> {
        secret.with(<[u8]>::to_vec)
    }

    #[test]
    fn exactly_one_place() {
        let none = SecretRef {
            env: None,
            file: None,
            not_after: None,
        };
        let both = SecretRef {
            env: Some("A".into()),
            file: Some("b".into()),
            not_after: None,
        };
        for place in [none, both] {
            assert_eq!(
                Secret::open(&place, Path::new("/")).err(),
                Some(SecretError::Ambiguous)
            );
        }
    }

    #[test]
    fn missing_empty_and_oversized_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| Secret::open(&file(name), dir.path()).err();
        assert!(
            matches!(open("absent"), Some(SecretError::Unreadable { place, .. }) if place.ends_with("absent"))
        );
        std::fs::write(dir.path().join("empty"), "\n").unwrap();
        assert!(matches!(open("empty"), Some(SecretError::Empty { .. })));
        std::fs::write(dir.path().join("long"), vec![b'x'; 64 * 1024 + 1]).unwrap();
        assert!(
            matches!(open("long"), Some(SecretError::Unreadable { cause, .. }) if cause.contains("64 KiB"))
        );
        assert!(
            matches!(open("."), Some(SecretError::Unreadable { cause, .. }) if cause == "not a file")
        );
        let unset = SecretRef {
            env: Some("FENCEPOST_TEST_NEVER_SET".into()),
            file: None,
            not_after: None,
        };
        assert!(matches!(
            Secret::open(&unset, dir.path()),
            Err(SecretError::Unreadable { .. })
        ));
    }

    #[test]
    fn white_space_alone_is_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for blank in ["", "\n", "\r\n", "\n\n", " ", "\t \r\n", "\u{b}", "\u{a0}"] {
            std::fs::write(&path, blank).unwrap();
            let found = Secret::open(&file("s"), dir.path()).err();
            let place = path.display().to_string();
            assert_eq!(found, Some(SecretError::Empty { place }), "{blank:?}");
        }
        // Bytes that are no text may be a key, whatever they look like.
        std::fs::write(&path, b" \xff ").unwrap();
        assert!(Secret::open(&file("s"), dir.path()).is_ok());
        assert!(is_blank(b"") && is_blank(b" \n") && !is_blank(b" k "));
    }

    #[test]
    fn a_file_that_turns_blank_keeps_the_old_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "old").unwrap();
        let secret = Secret::open_checking(&file("s"), dir.path(), 0).unwrap();
        std::fs::write(&path, "  \n").unwrap();
        assert_eq!(value(&secret), b"old");
    }

    #[test]
    fn one_trailing_newline_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        for (written, read) in [("k\n", "k"), ("k\r\n", "k"), ("k\n\n", "k\n"), (" k", " k")] {
            std::fs::write(dir.path().join("s"), written).unwrap();
            let secret = Secret::open(&file("s"), dir.path()).unwrap();
            assert_eq!(value(&secret), read.as_bytes());
        }
    }

    #[test]
    fn rotation_by_file_reaches_every_clone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "old\n").unwrap();
        let secret = Secret::open_checking(&file("s"), dir.path(), 0).unwrap();
        let clone = secret.clone();
        assert_eq!(value(&clone), b"old");
        std::fs::write(&path, "newer\n").unwrap();
        assert_eq!(value(&clone), b"newer");
        assert_eq!(value(&secret), b"newer");
    }

    #[test]
    fn a_file_that_goes_away_or_empties_keeps_the_old_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "old").unwrap();
        let secret = Secret::open_checking(&file("s"), dir.path(), 0).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(value(&secret), b"old");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(value(&secret), b"old");
        std::fs::write(&path, "back").unwrap();
        assert_eq!(value(&secret), b"back");
    }

    #[test]
    fn a_file_is_not_looked_at_before_its_time() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s"), "old").unwrap();
        let secret = Secret::open_checking(&file("s"), dir.path(), 3_600_000).unwrap();
        std::fs::write(dir.path().join("s"), "newer").unwrap();
        assert_eq!(value(&secret), b"old");
    }

    #[test]
    fn debug_shows_nothing() {
        let secret = Secret::from_bytes("hunter2");
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert!(!format!("{secret:?}").contains("104"), "nor its bytes");
    }

    #[test]
    fn not_after_is_inclusive() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s"), "x").unwrap();
        let place = SecretRef {
            not_after: Some("2027-01-31T00:00:00Z".parse().unwrap()),
            ..file("s")
        };
        let secret = Secret::open(&place, dir.path()).unwrap();
        assert!(secret.usable_at(1_801_353_600_000));
        assert!(!secret.usable_at(1_801_353_600_001));
    }
}
