//! A bounded wait for an answer, on a thread without a runtime.

use std::{
    future::Future as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};
use tokio::{sync::oneshot, time::Instant};

const STEP: Duration = Duration::from_millis(10);

/// Waits for `answer` on a thread without a runtime, about `patience` at most; none when it was dropped or too late.
pub(super) fn wait_for<T>(mut answer: oneshot::Receiver<T>, patience: Duration) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let deadline = Instant::now() + patience;
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut answer).poll(&mut context) {
            return answer.ok();
        }
        if Instant::now() >= deadline {
            tracing::warn!("revocation was not answered in time");
            return None;
        }
        thread::park_timeout(STEP);
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_from_another_thread_comes_through() {
        let (sender, answer) = oneshot::channel();
        let thread = thread::spawn(move || sender.send(7));
        assert_eq!(wait_for(answer, Duration::from_secs(30)), Some(7));
        assert_eq!(thread.join().expect("no panic"), Ok(()));
    }

    #[test]
    fn no_answer_ends_the_wait() {
        let (sender, answer) = oneshot::channel::<u8>();
        drop(sender);
        assert_eq!(wait_for(answer, Duration::from_secs(30)), None);
        let (_kept, answer) = oneshot::channel::<u8>();
        assert_eq!(wait_for(answer, Duration::from_millis(20)), None);
    }
}
