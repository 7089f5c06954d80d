//! A sender as providers are: what has no 2xx is sent again, under the same delivery id, to another instance.

use crate::{
    payload,
    random::SplitMix,
    sender::{Sender, Sent, Webhook},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// As GitHub: what has no answer by then has failed.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Webhooks on their way at once; when there are more, the next ones wait.
const AT_ONCE_MAX: usize = 512;
/// One in so many webhooks is sent once more although it was acknowledged.
const REPEATED_ONE_IN: usize = 20;
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Sends to several instances.
#[derive(Clone, Debug)]
pub struct Provider {
    instances: Vec<Sender>,
    tries_max: u32,
}

// === impl Provider ===

impl Provider {
    /// A sender to `urls`, in turn, each webhook at most `tries_max` times until there is a 2xx.
    pub fn new(urls: &[String], secret: &[u8], tries_max: u32) -> Self {
        let instances = urls.iter().map(|url| Sender::new(url, secret)).collect();
        Self {
            instances,
            tries_max,
        }
    }

    /// Webhooks made of `seed`, so many a second until `end`, and then their last tries. Gives every request.
    pub async fn run(&self, seed: u64, per_second: u32, end: Instant) -> Vec<Sent> {
        let room = Arc::new(Semaphore::new(AT_ONCE_MAX));
        let mut pace = Instant::now();
        let mut random = SplitMix::new(seed);
        let mut posts = JoinSet::new();
        let mut all = Vec::new();
        while pace < end {
            sleep_until(pace).await;
            pace = pace.max(Instant::now() - Duration::from_secs(1))
                + Duration::from_secs(1) / per_second;
            let permit = Arc::clone(&room).acquire_owned().await;
            let permit = permit.expect("never closed");
            let webhooks = payload::generated(random.draw(), 1);
            let turn = random.below(self.instances.len());
            let repeat = random.below(REPEATED_ONE_IN) == 0;
            let this = self.clone();
            posts.spawn(async move {
                let mut sent = Vec::new();
                for webhook in webhooks {
                    sent.extend(this.send(&webhook, turn).await);
                    if repeat {
                        sent.extend(this.send(&webhook, turn + 1).await);
                    }
                }
                drop(permit);
                sent
            });
            while let Some(done) = posts.try_join_next() {
                all.extend(done.expect("a post does not panic"));
            }
        }
        while let Some(done) = posts.join_next().await {
            all.extend(done.expect("a post does not panic"));
        }
        all
    }

    /// One webhook until it is acknowledged or given up; `turn` says which instance is asked first.
    pub async fn send(&self, webhook: &Webhook, turn: usize) -> Vec<Sent> {
        let mut sent: Vec<Sent> = Vec::new();
        let mut pause = Duration::from_millis(500);
        for number in 0..self.tries_max as usize {
            if number > 0 {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            let instance = &self.instances[(turn + number) % self.instances.len()];
            sent.push(instance.post_within(webhook, ANSWER_DEADLINE).await);
            if sent.last().is_some_and(Sent::acknowledged) {
                break;
            }
        }
        sent
    }
}
