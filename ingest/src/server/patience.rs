//! A stream that does not wait for ever for a peer that does not read.
//!
//! hyper has a limit for what it reads and none for what it writes: a client that pipelines requests and leaves the answers
//! unread would keep its connection, and with it a place among `connections_max`, for as long as it likes.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Fails with `TimedOut` when a write, flush or shutdown has been pending for `limit` without any progress.
#[derive(Debug)]
pub(crate) struct Patience<S> {
    stream: S,
    limit: Duration,
    /// Runs only while something is pending; most connections never have it.
    pending: Option<Pin<Box<Sleep>>>,
}

// === impl Patience ===

impl<S> Patience<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            pending: None,
        }
    }

    /// Passes `outcome` on, unless it has been pending for too long. Whatever is done starts the time anew.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.pending = None;
            return outcome;
        }
        let limit = self.limit;
        let timer = self.pending.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(cx));
        let message = "the peer did not read in time";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patience<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patience<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.bounded(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.bounded(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bounded(cx, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::timeout,
    };

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_peer_that_does_not_read_fails_the_write() {
        let (ours, _theirs) = duplex(4);
        let mut ours = Patience::new(ours, LIMIT);
        ours.write_all(b"fits").await.unwrap();
        assert!(ours.pending.is_none());
        let written = timeout(Duration::from_secs(10), ours.write_all(b"more")).await;
        let error = written.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_reads_late_is_waited_for_and_the_time_starts_anew() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Patience::new(ours, Duration::from_secs(600));
        ours.write_all(b"fits").await.unwrap();
        let mut read = [0; 8];
        let (wrote, read_all) =
            tokio::join!(biased; ours.write_all(b"more"), theirs.read_exact(&mut read));
        wrote.unwrap();
        read_all.unwrap();
        assert_eq!(&read, b"fitsmore");
        assert!(ours.pending.is_none(), "the timer runs on");
    }

    #[tokio::test]
    async fn waiting_for_the_peer_to_write_is_not_bounded_here() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Patience::new(ours, Duration::ZERO);
        let (byte, wrote) = tokio::join!(biased; ours.read_u8(), theirs.write_u8(7));
        wrote.unwrap();
        assert_eq!(byte.unwrap(), 7);
        assert!(ours.pending.is_none());
    }
}
