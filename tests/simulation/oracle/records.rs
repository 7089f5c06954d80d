//! What stands in the log, and what may be committed (invariants 1, 3, 4 and 5).

use super::{Carrier, Entry, Oracle};
use crate::{plan::Plan, store::short};
use bytes::Bytes;
use dedup_store::Status;
use event_log::{Appended, Received, Record, memory::MemoryLog};
use schemas::{Codec, DeliveryKey, Reason, Topic, Webhook};

impl Oracle {
    /// A record stands in the log. Gives a line for the trace.
    pub(crate) fn appended(&mut self, codec: &Codec, at: Appended, record: &Record) -> String {
        let place = (record.topic, at.partition, at.offset);
        let what = match record.topic {
            Topic::Webhooks => self.webhook(codec, place, &record.value),
            Topic::Delay(_) => self.delivery(codec, place, &record.value),
            Topic::DeadLetters => self.letter(codec, &record.value),
        };
        let (partition, offset) = (at.partition, at.offset);
        format!("log: {} {partition}:{offset} {what}", record.topic.suffix())
    }

    fn webhook(&mut self, codec: &Codec, place: super::Place, value: &[u8]) -> String {
        let Ok(webhook) = codec.decode_webhook(value) else {
            self.entries.insert(place, Entry::Garbage);
            return "garbage".to_owned();
        };
        self.check_bytes(&webhook.source, &webhook.delivery_id, &webhook.body);
        let to = Plan::destinations_of(&webhook.source, &webhook.event_type);
        let keys: Vec<_> = to.iter().map(|to| key(&webhook, to)).collect();
        for key in &keys {
            let carriers = self.carriers.entry(key.clone()).or_default();
            carriers.push(Carrier { place, fence: None });
        }
        self.entries.insert(place, Entry::Deliveries(keys));
        format!("{}/{}", webhook.source, webhook.delivery_id)
    }

    fn delivery(&mut self, codec: &Codec, place: super::Place, value: &[u8]) -> String {
        let delivery = match codec.decode_delivery(value) {
            Ok(delivery) => delivery,
            Err(error) => {
                self.violated(5, format!("a hop that nobody can read: {error}"), None);
                return "unreadable".to_owned();
            }
        };
        let (key, webhook) = (delivery.key(), &delivery.webhook);
        self.check_bytes(&webhook.source, &webhook.delivery_id, &webhook.body);
        if delivery.deferred > 0 {
            self.tally.count("deferrals");
        }
        let fence = delivery.fence;
        let own = |token| self.claims.get(&token).is_some_and(|it| it.key == key);
        if let Some(token) = fence.filter(|token| !own(*token)) {
            let what = format!("{key}: a hop with the fence of nobody, {}", short(token));
            self.violated(2, what, Some(&key));
        }
        self.carriers
            .entry(key.clone())
            .or_default()
            .push(Carrier { place, fence });
        self.entries
            .insert(place, Entry::Deliveries(vec![key.clone()]));
        format!(
            "{key} attempt {} fence {:?} deferred {}",
            delivery.attempt,
            fence.map(short),
            delivery.deferred
        )
    }

    fn letter(&mut self, codec: &Codec, value: &[u8]) -> String {
        let letter = match codec.decode_dead_letter(value) {
            Ok(letter) => letter,
            Err(error) => {
                self.violated(
                    5,
                    format!("a dead letter that nobody can read: {error}"),
                    None,
                );
                return "unreadable".to_owned();
            }
        };
        if letter.reason == Reason::Undecodable {
            self.tally.count("undecodable");
            let origin = &letter.origin;
            self.raw_letters.insert((origin.partition, origin.offset));
            return format!("undecodable {origin:?}");
        }
        self.check_bytes(&letter.source, &letter.delivery_id, &letter.body);
        let key = DeliveryKey {
            source: letter.source,
            delivery_id: letter.delivery_id,
            destination: letter.destination,
        };
        let what = format!("{key} {:?} generation {}", letter.reason, letter.generation);
        let letters = self.letters.entry(key).or_default();
        letters.insert(letter.generation, letter.reason);
        what
    }

    /// Body bytes are those that were posted.
    pub(super) fn check_bytes(&mut self, source: &str, delivery_id: &str, body: &Bytes) {
        let posted = self
            .posted
            .get(&(source.to_owned(), delivery_id.to_owned()));
        if posted.is_none_or(|posted| posted.body != *body) {
            let what = format!("{source}/{delivery_id}: the body is not what was posted");
            self.violated(5, what, None);
        }
    }

    /// A record goes to a process. Gives a line for the trace.
    pub(crate) fn handed_out(&mut self, now_ms: i64, record: &Received) -> String {
        let due_ms = record.appended_at_ms + wait_ms(record.topic);
        if due_ms > now_ms {
            let what = format!("{record:?} is handed out {} ms early", due_ms - now_ms);
            self.violated(4, what, None);
        }
        let place = (record.topic, record.partition, record.offset);
        let about = match self.entries.get(&place) {
            Some(Entry::Deliveries(keys)) => {
                let ids: Vec<_> = keys.iter().map(ToString::to_string).collect();
                ids.join(" ")
            }
            Some(Entry::Garbage) | None => "garbage".to_owned(),
        };
        let (partition, offset) = (record.partition, record.offset);
        format!(
            "reads {} {partition}:{offset} {about}",
            record.topic.suffix()
        )
    }

    /// Looks which commits have moved, and whether what they have passed is taken care of.
    pub(crate) fn look_at_commits(&mut self, at_ms: i64, log: &MemoryLog) {
        for topic in Topic::ALL {
            if topic == Topic::DeadLetters {
                continue;
            }
            for partition in 0..self.plan.partitions {
                let now = log.committed(topic, partition);
                let before = self.committed.insert((topic, partition), now).unwrap_or(0);
                if now == before {
                    continue;
                }
                let what = format!("committed {} {partition}:{now}", topic.suffix());
                self.trace.add(at_ms, "log", &what);
                if now < before {
                    let what = format!("{what}, {before} before");
                    self.violated(3, what, None);
                }
                let passed = (topic, partition, before)..(topic, partition, now.max(before));
                let passed: Vec<_> = self
                    .entries
                    .range(passed)
                    .map(|(at, it)| (*at, it.clone()))
                    .collect();
                for (place, entry) in passed {
                    self.passed(place, &entry);
                }
            }
        }
    }

    fn passed(&mut self, place: super::Place, entry: &Entry) {
        match entry {
            Entry::Garbage => {
                if !self.raw_letters.contains(&(place.1, place.2)) {
                    let what = format!("{place:?} is passed, and is no dead letter");
                    self.violated(3, what, None);
                }
            }
            Entry::Deliveries(keys) => {
                for key in keys {
                    if !self.is_carried(key) {
                        let row = self.rows.get(key);
                        let what = format!(
                            "{key}: the commit passed {place:?}, and nothing else carries it; row {row:?}"
                        );
                        self.violated(3, what, Some(key));
                    }
                }
            }
        }
    }

    /// Whether the delivery has ended, or some record that is still to be read can bring it there.
    pub(super) fn is_carried(&self, key: &DeliveryKey) -> bool {
        let row = self.rows.get(key);
        let carriers = self.carriers.get(key).into_iter().flatten();
        let mut open = carriers.filter(|carrier| {
            let (topic, partition, offset) = carrier.place;
            let committed = self.committed.get(&(topic, partition));
            offset >= committed.copied().unwrap_or(0)
        });
        match row.map(|row| (row.status, row.claim_token)) {
            Some((Status::Completed | Status::Failed, _)) => true,
            Some((Status::Waiting, token)) => open.any(|carrier| carrier.fence == Some(token)),
            // Whoever reads it takes over when the lease is over.
            Some((Status::Processing, _)) | None => open.next().is_some(),
        }
    }
}

pub(super) fn key(webhook: &Webhook, destination: &str) -> DeliveryKey {
    DeliveryKey {
        source: webhook.source.clone(),
        delivery_id: webhook.delivery_id.clone(),
        destination: destination.to_owned(),
    }
}

fn wait_ms(topic: Topic) -> i64 {
    topic.delay().map_or(0, |wait| {
        i64::try_from(wait.as_millis()).expect("a constant")
    })
}
