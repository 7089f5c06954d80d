//! How a process ends: a signal asks, a deadline bounds what follows.

use std::{future::Future, io, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Asks everything in the process to stop. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

// === impl Shutdown ===

impl Shutdown {
    /// A shutdown that only [`Self::stop`] asks for.
    pub fn new() -> Self {
        Self::default()
    }

    /// A shutdown that SIGTERM and SIGINT ask for; the second one ends the process at once.
    ///
    /// # Errors
    /// When the handlers can not be installed.
    pub fn on_signals() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let shutdown = Self::new();
        tokio::spawn(listen(shutdown.clone(), terminate, interrupt));
        Ok(shutdown)
    }

    /// Asks everything to stop.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Cancelled once a stop was asked for.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Resolves once a stop was asked for.
    pub async fn asked(&self) {
        self.token.cancelled().await;
    }
}

/// Waits for `future` until `deadline`; afterwards drops it and logs `what` took too long.
pub async fn within<F: Future>(
    deadline: Duration,
    what: &'static str,
    future: F,
) -> Option<F::Output> {
    let done = tokio::time::timeout(deadline, future).await.ok();
    if done.is_none() {
        tracing::warn!(what, deadline_ms = deadline.as_millis(), "gave up waiting");
    }
    done
}

async fn listen(shutdown: Shutdown, mut terminate: Signal, mut interrupt: Signal) {
    let mut stopping = false;
    loop {
        let code = tokio::select! {
            Some(()) = terminate.recv() => 128 + 15,
            Some(()) = interrupt.recv() => 128 + 2,
            else => return,
        };
        if stopping {
            tracing::warn!("second signal: ending at once");
            std::process::exit(code);
        }
        tracing::info!("signal: stopping; a second one ends at once");
        stopping = true;
        shutdown.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_clone_is_asked_and_no_wait_is_for_ever() {
        let shutdown = Shutdown::new();
        let other = shutdown.clone();
        let second = Duration::from_secs(1);
        assert_eq!(within(second, "a stop", other.asked()).await, None);
        shutdown.stop();
        assert_eq!(within(second, "a stop", other.asked()).await, Some(()));
    }
}
