//! Header lines.

use super::{Head, NoHead};
use http::HeaderName;

/// Where the lines stand in what `curl -v` and proxies print: `>` is what was sent, `<` what was received.
const MARKS: [u8; 2] = [b'>', b'<'];

pub(super) fn parse(text: &[u8]) -> Result<Head, NoHead> {
    let lines: Vec<(usize, &[u8])> = text
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .zip(1..)
        .map(|(line, number)| (number, line))
        .collect();
    // With both there, the request is what was sent.
    let mark = MARKS.into_iter().find(|mark| {
        let marked = |(_, line): &(usize, &[u8])| unmarked(line, *mark).is_some();
        lines.iter().any(marked)
    });
    match mark {
        Some(mark) => read(&marked(&lines, mark)?),
        None => read(&lines),
    }
}

/// What stands behind the mark.
fn unmarked(line: &[u8], mark: u8) -> Option<&[u8]> {
    let rest = line.strip_prefix(&[mark])?;
    match rest.first() {
        None => Some(rest),
        Some(b' ') => rest.get(1..),
        Some(_) => None,
    }
}

/// The marked lines of the first head, without what curl says in between.
fn marked<'a>(lines: &[(usize, &'a [u8])], mark: u8) -> Result<Vec<(usize, &'a [u8])>, NoHead> {
    let mut found: Vec<(usize, &[u8])> = Vec::new();
    for &(number, line) in lines {
        if let Some(rest) = unmarked(line, mark) {
            if rest.is_empty() {
                if found.is_empty() {
                    continue;
                }
                break;
            }
            found.push((number, rest));
        } else if !found.is_empty() && is_header(line) {
            let message = format!(
                "stands without {} between lines that have it",
                char::from(mark)
            );
            return Err(NoHead::at(number, message));
        }
    }
    Ok(found)
}

/// Whether it is a header and none of curl's remarks.
fn is_header(line: &[u8]) -> bool {
    let mut parts = line.splitn(2, |byte| *byte == b':');
    let name = parts.next().unwrap_or_default();
    parts.next().is_some() && HeaderName::from_bytes(name).is_ok()
}

fn read(lines: &[(usize, &[u8])]) -> Result<Head, NoHead> {
    let mut head = Head::default();
    let mut begun = false;
    let mut ended = false;
    for &(number, line) in lines {
        if line.trim_ascii().is_empty() {
            ended = begun;
            continue;
        }
        if ended {
            if line.trim_ascii() == b"Payload" {
                break;
            }
            let message = "nothing may follow the empty line that ends the headers; the body has a file of its own";
            return Err(NoHead::at(number, message));
        }
        // The title of GitHub's list.
        if !begun && line.trim_ascii() == b"Headers" {
            continue;
        }
        let first = !begun;
        begun = true;
        if first && request_line(&mut head, line, number)? {
            continue;
        }
        header(&mut head, line, number)?;
    }
    Ok(head)
}

/// Reads `POST /hooks/github?a=b HTTP/1.1`, with or without the version. False when the line is something else.
fn request_line(head: &mut Head, line: &[u8], number: usize) -> Result<bool, NoHead> {
    let Ok(text) = std::str::from_utf8(line) else {
        return Ok(false);
    };
    if text.starts_with("HTTP/") {
        let message = "begins an answer; what is looked at is the request";
        return Err(NoHead::at(number, message));
    }
    let mut words = text.split_ascii_whitespace();
    let (Some(method), Some(target), version, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Ok(false);
    };
    let is_method = method.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_target = target.starts_with('/') || target.contains("://");
    if !is_method || !is_target || version.is_some_and(|version| !version.starts_with("HTTP/")) {
        return Ok(false);
    }
    head.call(method, number)?;
    head.aim(target);
    Ok(true)
}

fn header(head: &mut Head, line: &[u8], number: usize) -> Result<(), NoHead> {
    if line.first().is_some_and(u8::is_ascii_whitespace) {
        let message =
            "begins with white space: a header in two lines is nothing that a server takes";
        return Err(NoHead::at(number, message));
    }
    // HTTP/2 has `:method` and `:path` for the request line.
    let pseudo = usize::from(line.first() == Some(&b':'));
    let rest = line.get(pseudo..).unwrap_or_default();
    let Some(colon) = rest.iter().position(|byte| *byte == b':') else {
        return Err(NoHead::at(number, "is not `Name: value`"));
    };
    let (name, value) = line.split_at(pseudo + colon);
    let value = value.get(1..).unwrap_or_default();
    let text = || String::from_utf8_lossy(value.trim_ascii()).into_owned();
    match name.to_ascii_lowercase().as_slice() {
        // The first lines of GitHub's list.
        b"request method" | b":method" => head.call(&text(), number),
        b"request url" | b":path" => {
            head.aim(&text());
            Ok(())
        }
        b":authority" | b":scheme" => Ok(()),
        _ => head.add(name, value, number),
    }
}
