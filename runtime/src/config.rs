//! Loading the one config file, and the form in which every crate reports a mistake in it.

/// A mistake in the config, at a key path such as `destinations.billing.retry.cap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Dotted key path.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
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
        write!(f, "{}: {}", self.key, self.message)
    }
}
