//! The processes of one role, each at a place with a port of its own, and somebody who starts them again.

use crate::tell;
use harness::{
    now_ms,
    process::{Process, Role},
    site::{Site, free_port},
};
use std::{process::ExitStatus, time::Duration};
use tokio::time::{Instant, sleep};

/// A start may fall into an outage of the log or the store, and wait for its end.
const READY_DEADLINE: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(200);

/// Processes of a role.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    site: &'a Site,
    role: Role,
    places: Vec<(Process, u16)>,
    /// Processes that ended although nobody had ended them, and when that was seen: a supervisor starts them again.
    ended_by_themselves: Vec<(usize, i64)>,
}

// === impl Fleet ===

impl<'a> Fleet<'a> {
    /// So many processes, all ready.
    pub(crate) async fn start(site: &'a Site, role: Role, count: usize) -> Self {
        let mut fleet = Self {
            site,
            role,
            places: Vec::new(),
            ended_by_themselves: Vec::new(),
        };
        for _ in 0..count {
            fleet.add();
        }
        for place in 0..count {
            fleet.ready(place).await;
        }
        fleet
    }

    /// A further process; gives its place.
    pub(crate) fn add(&mut self) -> usize {
        let port = free_port();
        self.places
            .push((self.site.launch_on(self.role, port), port));
        self.places.len() - 1
    }

    /// The process that was added last goes, and its place with it.
    pub(crate) fn remove_last(&mut self) {
        drop(self.places.pop());
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn process(&mut self, place: usize) -> &mut Process {
        &mut self.places[place].0
    }

    /// A new process at a place whose old one has ended.
    pub(crate) fn replace(&mut self, place: usize) {
        let port = self.places[place].1;
        self.places[place].0 = self.site.launch_on(self.role, port);
    }

    /// Waits until a place's process is ready.
    ///
    /// # Panics
    /// When it is not in time.
    pub(crate) async fn ready(&mut self, place: usize) {
        let end = Instant::now() + READY_DEADLINE;
        while !self.places[place].0.is_ready().await {
            self.revive();
            assert!(
                Instant::now() < end,
                "{:?} {place} is not ready within {READY_DEADLINE:?}",
                self.role
            );
            sleep(LOOK).await;
        }
    }

    /// Starts again what has ended by itself, as a supervisor would.
    pub(crate) fn revive(&mut self) {
        for place in 0..self.places.len() {
            let process = &mut self.places[place].0;
            if let Some(status) = process.has_ended() {
                tell(&format!(
                    "{:?} {place} ended by itself, {status}: {}",
                    self.role,
                    last_lines(&process.log())
                ));
                self.ended_by_themselves.push((process.number(), now_ms()));
                self.replace(place);
            }
        }
    }

    /// Waits until `at`, with an eye on the processes.
    pub(crate) async fn wait_until(&mut self, at: Instant) {
        while Instant::now() < at {
            self.revive();
            sleep(LOOK).await;
        }
    }

    pub(crate) fn take_ended_by_themselves(&mut self) -> Vec<(usize, i64)> {
        std::mem::take(&mut self.ended_by_themselves)
    }

    pub(crate) fn hook_urls(&self) -> Vec<String> {
        self.places
            .iter()
            .map(|(process, _)| process.hook_url())
            .collect()
    }

    /// SIGTERM for all; gives how they ended.
    pub(crate) async fn stop(mut self, deadline: Duration) -> Vec<ExitStatus> {
        let mut ended = Vec::new();
        for (process, _) in &mut self.places {
            ended.push(process.terminate(deadline).await);
        }
        ended
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
