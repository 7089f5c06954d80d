//! The first bytes of a connection: a PROXY header where there must be one, and which HTTP follows.
//!
//! hyper-util can tell the version as well, but waits for the bytes without a limit (hyperium/hyper#3756).

use super::proxy::{self, Parsed};
use bytes::{Buf, BytesMut};
use std::{
    io,
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// How an HTTP/2 client that knows what it wants begins (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// A stream of which bytes were read ahead; they are read first.
#[derive(Debug)]
pub(super) struct Ahead<S> {
    stream: S,
    bytes: BytesMut,
}

/// No PROXY header.
#[derive(Debug)]
pub(super) struct NoHeader;

// === impl Ahead ===

impl<S: AsyncRead + Unpin> Ahead<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            bytes: BytesMut::new(),
        }
    }

    /// Takes the PROXY header off. None: it names no client. Reads no more than a header may have.
    pub(super) async fn proxy_header(&mut self) -> Result<Option<IpAddr>, NoHeader> {
        loop {
            match proxy::parse(&self.bytes) {
                Parsed::Part => self.fill(proxy::HEADER_BYTES_MAX).await?,
                Parsed::Malformed => return Err(NoHeader),
                Parsed::Header { bytes, client } => {
                    self.bytes.advance(bytes);
                    return Ok(client);
                }
            }
        }
    }

    /// Reads until it is clear which version this is. A connection that ends before is left to HTTP/1, which ends it.
    pub(super) async fn version(&mut self) -> Version {
        loop {
            let compared = self.bytes.len().min(PREFACE.len());
            if self.bytes.get(..compared) != PREFACE.get(..compared) {
                return Version::Http1;
            }
            if compared == PREFACE.len() {
                return Version::Http2;
            }
            if self.fill(PREFACE.len()).await.is_err() {
                return Version::Http1;
            }
        }
    }

    /// Reads once, up to `bytes_max` in all.
    async fn fill(&mut self, bytes_max: usize) -> Result<(), NoHeader> {
        let left = bytes_max.saturating_sub(self.bytes.len());
        let mut limited = (&mut self.stream).take(left as u64);
        match limited.read_buf(&mut self.bytes).await {
            Ok(0) | Err(_) => Err(NoHeader),
            Ok(_) => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let length = self.bytes.len().min(buffer.remaining());
        buffer.put_slice(&self.bytes.split_to(length));
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};

    async fn opened(bytes: &[u8]) -> (Version, Vec<u8>) {
        let (ours, mut theirs) = duplex(64);
        let mut ours = Ahead::new(ours);
        let write = async {
            for byte in bytes {
                theirs.write_u8(*byte).await.unwrap();
            }
            drop(theirs);
        };
        let read = async {
            let version = ours.version().await;
            let mut all = Vec::new();
            ours.read_to_end(&mut all).await.unwrap();
            (version, all)
        };
        tokio::join!(write, read).1
    }

    #[tokio::test]
    async fn the_version_shows_in_the_first_bytes_and_none_is_lost() {
        let two = [PREFACE, b"frames"].concat();
        for (bytes, version) in [
            (&two[..], Version::Http2),
            (b"POST / HTTP/1.1\r\n", Version::Http1),
            (b"PRI / HTTP/1.1\r\n", Version::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSN", Version::Http1),
            (b"PRI", Version::Http1),
            (b"", Version::Http1),
        ] {
            assert_eq!(opened(bytes).await, (version, bytes.to_vec()));
        }
    }

    #[tokio::test]
    async fn what_follows_the_proxy_header_is_kept() {
        let (ours, mut theirs) = duplex(64);
        let mut ours = Ahead::new(ours);
        let text = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nPOST /";
        theirs.write_all(text).await.unwrap();
        drop(theirs);
        let client = ours.proxy_header().await.unwrap();
        assert_eq!(client, Some("192.0.2.1".parse().unwrap()));
        let mut rest = String::new();
        ours.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "POST /");
    }

    #[tokio::test]
    async fn a_header_that_breaks_off_is_none() {
        let (ours, mut theirs) = duplex(64);
        theirs.write_all(b"PROXY TCP4").await.unwrap();
        drop(theirs);
        assert!(Ahead::new(ours).proxy_header().await.is_err());
    }
}
