//! What commands print.

use std::io::{self, Write};

/// Prints to standard output. A reader that went away (`| head`) is no failure.
///
/// # Errors
/// Any other failure to write.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints a line to standard error.
pub(crate) fn complain(line: &str) {
    // There is nowhere left to say that this failed.
    drop(writeln!(io::stderr().lock(), "{line}"));
}

/// A time for people and machines, UTC.
pub(crate) fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| time.to_string())
}

/// Foreign text on one line, without anything that a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
