//! The head of a captured request, from whatever wrote it down: header lines, what `curl -v` or a proxy prints, GitHub's
//! "Recent deliveries", or a JSON object.

mod json;
mod lines;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Longest file of headers that is read, bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 256 << 10;

/// As much of a request as was written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Of a request line.
    pub method: Option<Method>,
    /// What stands behind the `?` of a request line's target.
    pub query: Option<String>,
    /// In the order of their names; of equal names all.
    pub headers: HeaderMap,
}

/// A text that is no head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub(crate) struct NoHead {
    /// From 1.
    pub line: usize,
    /// Names no value.
    pub message: String,
}

// === impl Head ===

impl Head {
    /// Reads any of the forms.
    ///
    /// # Errors
    /// The first line that can not be read.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, NoHead> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        if text.trim_ascii_start().first() == Some(&b'{') {
            json::parse(text)
        } else {
            lines::parse(text)
        }
    }

    /// Takes the query of a request's target or URL.
    fn aim(&mut self, target: &str) {
        let without_fragment = target.split('#').next().unwrap_or_default();
        self.query = without_fragment
            .split_once('?')
            .map(|(_, query)| query.to_owned());
    }

    fn call(&mut self, method: &str, line: usize) -> Result<(), NoHead> {
        match Method::from_bytes(method.as_bytes()) {
            Ok(method) => self.method = Some(method),
            Err(_) => return Err(NoHead::at(line, "is not an HTTP method")),
        }
        Ok(())
    }

    fn add(&mut self, name: &[u8], value: &[u8], line: usize) -> Result<(), NoHead> {
        let Ok(name) = HeaderName::from_bytes(name) else {
            return Err(NoHead::at(
                line,
                "what stands before the colon is not a header name",
            ));
        };
        let Ok(value) = HeaderValue::from_bytes(value.trim_ascii()) else {
            let message = format!("the value of {name} has characters that no header may have");
            return Err(NoHead::at(line, message));
        };
        match self.headers.try_append(name, value) {
            Ok(_) => Ok(()),
            Err(_) => Err(NoHead::at(line, "there are too many headers")),
        }
    }
}

// === impl NoHead ===

impl NoHead {
    fn at(line: usize, message: impl Into<String>) -> Self {
        Self {
            line,
            message: message.into(),
        }
    }
}

/// Headers as lines, the way [`Head::parse`] reads them.
pub(crate) fn printed(headers: &HeaderMap) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in headers {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests;
