//! A stream that does not wait for ever for a peer that does not read.
//!
//! hyper has a limit for what it reads and none for what it writes: a client that pipelines requests and leaves the answers
//! unread, or reads a byte now and then, would keep its connection, and with it a place among `connections_max`, for as long
//! as it likes.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// Fails with `TimedOut` when what was to be written has not all been taken within `limit`; some of it does not help.
#[derive(Debug)]
pub(crate) struct Patience<S, R> {
    stream: S,
    limit: Duration,
    /// Sees all that is read before the reader does.
    seen: R,
    /// Since when there has been something to write.
    since: Option<Instant>,
    /// Runs only while something is pending; most connections never have it.
    pending: Option<Pin<Box<Sleep>>>,
}

// === impl Patience ===

impl<S, R> Patience<S, R> {
    pub(crate) fn new(stream: S, limit: Duration, seen: R) -> Self {
        Self {
            stream,
            limit,
            seen,
            since: None,
            pending: None,
        }
    }

    /// There is something to write.
    fn begin(&mut self) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
    }

    /// Everything has been written.
    fn end(&mut self) {
        self.since = None;
        self.pending = None;
    }

    /// Passes `outcome` on, unless it is pending and the time is over.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            return outcome;
        }
        let until = *self.since.get_or_insert_with(Instant::now) + self.limit;
        let timer = self
            .pending
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(timer.as_mut().poll(cx));
        let message = "the peer did not read in time";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S, R> AsyncRead for Patience<S, R>
where
    S: AsyncRead + Unpin,
    R: FnMut(&mut [u8]) + Unpin,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = buffer.filled_mut().get_mut(before..).unwrap_or_default();
        if !read.is_empty() {
            (self.seen)(read);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, R: Unpin> AsyncWrite for Patience<S, R> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin();
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin();
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.bounded(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper calls this when it has handed on all that it had, for HTTP/1 and HTTP/2 alike.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        if outcome.is_ready() {
            self.end();
        }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const LIMIT: Duration = Duration::from_secs(5);

    fn patient(stream: DuplexStream) -> Patience<DuplexStream, impl FnMut(&mut [u8])> {
        Patience::new(stream, LIMIT, |_: &mut [u8]| {})
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_fails_the_write() {
        let (ours, _theirs) = duplex(4);
        let mut ours = patient(ours);
        ours.write_all(b"fits").await.unwrap();
        assert!(ours.pending.is_none());
        let error = ours.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_a_byte_now_and_then_gains_nothing() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = patient(ours);
        let start = Instant::now();
        let drip = tokio::spawn(async move {
            while theirs.read_u8().await.is_ok() {
                tokio::time::sleep(LIMIT / 4).await;
            }
        });
        let error = ours.write_all(&[0; 1_000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < 2 * LIMIT);
        drip.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_late_is_waited_for_and_the_next_answer_has_its_own_time() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = patient(ours);
        for _ in 0..3 {
            let mut read = [0; 8];
            let late = async {
                tokio::time::sleep(LIMIT / 2).await;
                theirs.read_exact(&mut read).await.unwrap();
            };
            let write = async {
                ours.write_all(b"fitsmore").await.unwrap();
                ours.flush().await.unwrap();
            };
            tokio::join!(write, late);
            assert_eq!(&read, b"fitsmore");
            assert!(ours.pending.is_none(), "the timer runs on");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_peer_to_write_is_not_bounded_here_and_what_it_writes_is_seen() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Patience::new(ours, Duration::ZERO, |read: &mut [u8]| read.fill(9));
        let late = async {
            tokio::time::sleep(LIMIT).await;
            theirs.write_u8(7).await.unwrap();
        };
        let (byte, ()) = tokio::join!(ours.read_u8(), late);
        assert_eq!(byte.unwrap(), 9);
        assert!(ours.pending.is_none());
    }
}
