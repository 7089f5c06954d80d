//! Reads along with hyper where HTTP/1 messages begin and end, and spoils what two readers could understand differently.
//!
//! hyper takes a lone LF for a line's end, and of a request with a content length beside a transfer coding it drops the length
//! without a word. A proxy in front may see another request there ("request smuggling", RFC 9112 section 11.2). Whatever is
//! of that kind is overwritten before hyper sees it, with what makes hyper answer 400 and close the connection.

/// Longest part of a line that is kept, bytes: enough for a length with its name. Longer lines are of no interest here, but for
/// one that says a length.
const LINE_KEPT_MAX: usize = 256;

/// Hex digits of a chunk's size: as many as 64 bits have.
const SIZE_DIGITS_MAX: usize = 16;

/// What is put over spoiled bytes, again and again. NUL is allowed nowhere in a head or around a chunk; the empty line behind it
/// is there because hyper looks at a head that comes in parts only when that seems to be complete.
const SPOIL: [u8; 3] = *b"\0\n\n";

/// Where in the messages of one connection the next byte stands.
#[derive(Debug)]
pub(super) struct Framing {
    at: At,
    /// Beginning of the current line, without its end.
    line: Vec<u8>,
    /// The last byte of the line was a CR, which is not kept.
    after_cr: bool,
    length: Option<u64>,
    coded: bool,
    /// Where in [`SPOIL`] the next spoiled byte stands.
    spoil_at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// A request line, or an empty line before one.
    Request,
    Header,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// Something was spoiled; so is all that follows.
    Spoiled,
}

// === impl Framing ===

impl Framing {
    pub(super) fn new() -> Self {
        Self {
            at: At::Request,
            line: Vec::new(),
            after_cr: false,
            length: None,
            coded: false,
            spoil_at: 0,
        }
    }

    /// Goes over the next `bytes` of the connection, however they were cut, and spoils what must not be understood.
    pub(super) fn follow(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let rest = match self.at {
                At::Body(left) | At::Chunk(left) => self.skip(left, bytes),
                At::Request | At::Header | At::ChunkSize | At::ChunkEnd | At::Trailer => {
                    self.read_line(bytes)
                }
                At::Spoiled => return self.spoil(bytes),
            };
            bytes = rest;
        }
    }

    /// Passes content over; the rest is what stands behind it.
    fn skip<'a>(&mut self, left: u64, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let passed = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let left = left - passed as u64;
        self.at = match (self.at, left) {
            (At::Chunk(_), 0) => At::ChunkEnd,
            (At::Chunk(_), left) => At::Chunk(left),
            (_, 0) => At::Request,
            (_, left) => At::Body(left),
        };
        bytes.get_mut(passed..).unwrap_or_default()
    }

    /// Takes bytes up to the end of the line; the rest is what stands behind it.
    fn read_line<'a>(&mut self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.keep(bytes);
            return &mut [];
        };
        let (line, rest) = bytes.split_at_mut(end);
        self.keep(line);
        let ended_well = std::mem::take(&mut self.after_cr);
        let kept = std::mem::take(&mut self.line);
        self.at = if ended_well {
            self.after_line(&kept)
        } else {
            At::Spoiled
        };
        if self.at == At::Spoiled {
            self.spoil(rest);
            return &mut [];
        }
        // The allocation goes on being used.
        self.line = kept;
        self.line.clear();
        rest.get_mut(1..).unwrap_or_default()
    }

    fn spoil(&mut self, bytes: &mut [u8]) {
        let pattern = SPOIL.iter().cycle().skip(self.spoil_at);
        for (byte, over) in bytes.iter_mut().zip(pattern) {
            *byte = *over;
        }
        self.spoil_at = (self.spoil_at + bytes.len()) % SPOIL.len();
    }

    fn keep(&mut self, part: &[u8]) {
        for byte in part {
            // A CR in the middle of a line is refused by hyper.
            if self.after_cr && self.line.len() < LINE_KEPT_MAX {
                self.line.push(b'\r');
            }
            self.after_cr = *byte == b'\r';
            if !self.after_cr && self.line.len() < LINE_KEPT_MAX {
                self.line.push(*byte);
            }
        }
    }

    fn after_line(&mut self, line: &[u8]) -> At {
        match self.at {
            At::Request if line.is_empty() => At::Request,
            At::Request => {
                (self.length, self.coded) = (None, false);
                At::Header
            }
            At::Header if line.is_empty() => self.after_head(),
            At::Header => self.after_header(line),
            At::ChunkSize => match chunk_size(line) {
                None => At::Spoiled,
                Some(0) => At::Trailer,
                Some(size) => At::Chunk(size),
            },
            At::ChunkEnd if line.is_empty() => At::ChunkSize,
            At::Trailer if line.is_empty() => At::Request,
            At::Trailer => At::Trailer,
            At::Body(_) | At::Chunk(_) | At::ChunkEnd | At::Spoiled => At::Spoiled,
        }
    }

    fn after_head(&self) -> At {
        match (self.coded, self.length) {
            (true, _) => At::ChunkSize,
            (false, None | Some(0)) => At::Request,
            (false, Some(length)) => At::Body(length),
        }
    }

    fn after_header(&mut self, line: &[u8]) -> At {
        // A line that begins with white space would go on with the one before (RFC 9112 section 5.2: obsolete).
        if line.first().is_some_and(u8::is_ascii_whitespace) {
            return At::Spoiled;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return At::Header;
        };
        let (name, value) = line.split_at(colon);
        if name.last().is_some_and(u8::is_ascii_whitespace) {
            return At::Spoiled;
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.coded = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = content_length(value.get(1..).unwrap_or_default());
            if line.len() >= LINE_KEPT_MAX
                || length.is_none()
                || self.length.is_some_and(|other| Some(other) != length)
            {
                return At::Spoiled;
            }
            self.length = length;
        }
        if self.coded && self.length.is_some() {
            At::Spoiled
        } else {
            At::Header
        }
    }
}

/// RFC 9110 section 8.6: digits, nothing else.
fn content_length(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| all)?
        .parse()
        .ok()
}

/// RFC 9112 section 7.1: hex digits, then extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line
        .iter()
        .position(|byte| !byte.is_ascii_hexdigit())
        .unwrap_or(line.len());
    let (digits, extensions) = line.split_at_checked(end)?;
    // A longer number may go on behind what is kept of the line.
    let too_long = digits.len() > SIZE_DIGITS_MAX;
    if too_long || !matches!(extensions.first(), None | Some(b';' | b' ' | b'\t')) {
        return None;
    }
    let digits = std::str::from_utf8(digits).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn followed(text: &str, cut: &[usize]) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        let mut framing = Framing::new();
        let mut rest = bytes.as_mut_slice();
        for at in cut {
            let (part, behind) = rest.split_at_mut((*at).min(rest.len()));
            framing.follow(part);
            rest = behind;
        }
        framing.follow(rest);
        bytes
    }

    fn passes(text: &str) -> bool {
        followed(text, &[]) == text.as_bytes()
    }

    const NEXT: &str = "POST / HTTP/1.1\r\nhost: h\r\n\r\n";

    #[test]
    fn what_is_clear_passes_unchanged() {
        for head in [
            "",
            "content-length: 0\r\n",
            "content-length:5\r\ncontent-length: 5\r\n",
            "content-length: 5\r\n",
            "transfer-encoding: chunked\r\n",
        ] {
            let body = match head {
                _ if head.contains("5\r\n") => "a\nb\nc",
                _ if head.contains("chunked") => {
                    "4;x=y\r\n\n\n\r\n\r\nA\r\n0123456789\r\n0\r\nt: 1\r\n\r\n"
                }
                _ => "",
            };
            let text = format!("\r\nPOST / HTTP/1.1\r\n{head}host: h\r\n\r\n{body}{NEXT}{NEXT}");
            assert!(passes(&text), "{text:?}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_spoiled() {
        for head in [
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "Transfer-Encoding: x\r\nCONTENT-LENGTH: 5\r\n",
            "content-length: 5\r\ncontent-length: 6\r\n",
            "content-length: 5, 5\r\n",
            "content-length: +5\r\n",
            "content-length: \r\n",
            "content-length: 99999999999999999999\r\n",
            "content-length : 5\r\n",
            "x: y\n",
            "x: y\r\n folded\r\n",
            "x: y\r\n\tcontent-length: 5\r\n",
            "\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\nhost: h\r\n{head}\r\n{NEXT}");
            assert!(!passes(&text), "{text:?}");
            let spoiled = followed(&text, &[]);
            let behind = &spoiled[spoiled.len() - 20..];
            assert!(behind.iter().all(|byte| SPOIL.contains(byte)), "{text:?}");
        }
        let padded = format!("content-length:{}5\r\n", " ".repeat(LINE_KEPT_MAX));
        assert!(!passes(&format!("POST / HTTP/1.1\r\n{padded}\r\n")));
        let coded = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        let zeros = format!("{}5\r\nabcde\r\n0\r\n\r\n", "0".repeat(LINE_KEPT_MAX));
        for body in [
            zeros.as_str(),
            "2\nab\r\n",
            "2\r\nabc\r\n",
            "x\r\n",
            "\r\n",
            "fffffffffffffffff\r\n",
            "0\r\nt: 1\n\r\n",
        ] {
            assert!(!passes(&format!("{coded}{body}")), "{body:?}");
        }
        assert!(!passes("\nPOST / HTTP/1.1\r\n"));
        assert!(
            !passes(&format!("{coded}0\r\n\r\nPOST / HTTP/1.1\n")),
            "a later head"
        );
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_are_cut(
            lines in proptest::collection::vec("(content-length: [0-9]{1,2}|transfer-encoding: chunked|x: y|[0-9a-f]|)(\r\n|\r\n|\r\n|\n|\r)", 0..12),
            cut in proptest::collection::vec(0_usize..40, 0..8),
        ) {
            let text = format!("POST / HTTP/1.1\r\n{}", lines.concat());
            prop_assert_eq!(followed(&text, &cut), followed(&text, &[]));
        }
    }
}
