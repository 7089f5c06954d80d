//! Requests as bytes, and what comes back.

use harness::{
    sender::{Webhook, signature},
    site::GITHUB_SECRET,
};
use std::io;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Types of HTTP/2 frames.
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Head of a signed webhook; `lines` end each with a line break.
pub(crate) fn head(webhook: &Webhook, lines: &str) -> String {
    let Webhook {
        delivery_id,
        event,
        body,
    } = webhook;
    let signature = signature(GITHUB_SECRET, body);
    format!(
        "POST /hooks/github HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nx-github-event: {event}\r\n\
         x-github-delivery: {delivery_id}\r\nx-hub-signature-256: {signature}\r\n{lines}\r\n"
    )
}

/// A signed webhook, whole.
pub(crate) fn whole(webhook: &Webhook) -> Vec<u8> {
    let lines = format!("content-length: {}\r\n", webhook.body.len());
    [head(webhook, &lines).as_bytes(), &webhook.body].concat()
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(crate) async fn connect(port: u16) -> io::Result<(BufReader<OwnedReadHalf>, OwnedWriteHalf)> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    Ok((BufReader::new(reader), writer))
}

/// An answer and its body: the status, and whether the connection goes on.
pub(crate) async fn answer(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<(u16, bool)> {
    let (mut status, mut length, mut goes_on) = (None, 0, true);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if status.is_none() {
            let word = line.split(' ').nth(1);
            status = Some(word.and_then(|word| word.parse().ok()).unwrap_or(0));
        }
        match line.split_once(": ") {
            Some(("content-length", text)) => length = text.parse().unwrap_or(0),
            Some(("connection", text)) => goes_on = text != "close",
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    Ok((status.unwrap_or(0), goes_on))
}

/// Everything until the connection ends, in whatever way.
pub(crate) async fn rest(reader: &mut BufReader<OwnedReadHalf>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset ends it as well; what came before is kept.
    drop(reader.read_to_end(&mut bytes).await);
    bytes
}

/// The statuses in what was said over HTTP/1.
pub(crate) fn statuses(said: &[u8]) -> Vec<String> {
    let said = String::from_utf8_lossy(said);
    let answers = said.split("HTTP/1.1 ").skip(1);
    answers
        .filter_map(|answer| answer.get(..3).map(str::to_owned))
        .collect()
}

/// The errors of GOAWAY frames in what was said over HTTP/2.
pub(crate) fn goaways(mut said: &[u8]) -> Vec<String> {
    let mut errors = Vec::new();
    while let Some(([a, b, c, kind, ..], behind)) = said.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, behind)) = behind.split_at_checked(length) else {
            break;
        };
        if let (GOAWAY, Some(error)) = (*kind, payload.get(4..8)) {
            let error = error
                .iter()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte));
            errors.push(format!("GOAWAY {error}"));
        }
        said = behind;
    }
    errors
}
