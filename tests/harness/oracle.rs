//! The judge. What was acknowledged is an obligation; what happened is what receivers and dead letters show.
//!
//! It checks invariants 1 (nothing acknowledged is lost), 5 (bodies unchanged) and 9 (nothing sent twice), and that nothing
//! arrives that was not sent. The pipeline's own figures play no part.

use crate::{dead_letters::DeadLetter, receiver::Arrival, sender::Sent};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// An attempt that was answered so short a time before a kill may not have been noted as completed: the answer, the record
/// of it and the kill overlap. Milliseconds.
const IN_FLIGHT_MS: i64 = 3_000;
/// What the killed process had written to its socket may be read by the receiver a little later. No successor can have
/// started so soon: it must wait for the lease. Milliseconds.
const ON_THE_WIRE_MS: i64 = 1_000;
/// Cases shown of each kind.
const SHOWN_MAX: usize = 5;

/// Path of a receiver and `x-github-delivery`: one delivery.
pub type Delivery = (String, String);

/// Everything that is known from outside.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Every request to ingest, acknowledged or not.
    pub sent: Vec<Sent>,
    /// Everything that arrived.
    pub arrivals: Vec<Arrival>,
    /// Everything in the dead-letter topic.
    pub dead_letters: Vec<DeadLetter>,
    /// Destinations that each webhook is owed to: name in the config and path at the receiver.
    pub destinations: Vec<(String, String)>,
    /// When dispatchers were killed, milliseconds since the Unix epoch.
    pub kills_ms: Vec<i64>,
}

/// The judgement.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Deliveries owed.
    pub obligations: usize,
    /// Answered 2xx by their receiver.
    pub delivered: usize,
    /// In the dead-letter topic.
    pub dead_lettered: usize,
    /// Neither.
    pub lost: Vec<Delivery>,
    /// Accepted by their receiver more than once, without a kill that explains it.
    pub doubled: Vec<Delivery>,
    /// Accepted more than once, the earlier time just before a kill.
    pub repeated_by_kill: Vec<Delivery>,
    /// Arrived, or dead-lettered, with other bytes than were sent.
    pub altered: Vec<Delivery>,
    /// Arrived without having been sent.
    pub foreign: Vec<Delivery>,
    /// Arrived with another `webhook-id` than before.
    pub renamed: Vec<Delivery>,
}

// === impl Oracle ===

impl Oracle {
    /// Looks at everything.
    pub fn judge(&self) -> Report {
        let mut bodies: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for sent in &self.sent {
            bodies
                .entry(&sent.delivery_id)
                .or_default()
                .insert(&sent.body_sha256);
        }
        let arrivals = self.by_delivery();
        let dead = self.dead();
        let mut report = Report::default();
        for (path, id) in self.owed() {
            report.obligations += 1;
            let accepted = arrivals
                .get(&(path.clone(), id.clone()))
                .is_some_and(|all| all.iter().any(|it| it.accepted() || it.uncertain));
            let dead_lettered = dead.contains(&(path.clone(), id.clone()));
            report.delivered += usize::from(accepted);
            report.dead_lettered += usize::from(dead_lettered);
            if !accepted && !dead_lettered {
                report.lost.push((path, id));
            }
        }
        for (delivery, all) in &arrivals {
            self.judge_arrivals(delivery, all, bodies.get(delivery.1.as_str()), &mut report);
        }
        for letter in &self.dead_letters {
            let known = bodies.get(letter.delivery_id.as_str());
            if known.is_some_and(|hashes| !hashes.contains(letter.body_sha256().as_str())) {
                report
                    .altered
                    .push((letter.destination.clone(), letter.delivery_id.clone()));
            }
        }
        report
    }

    fn judge_arrivals(
        &self,
        delivery: &Delivery,
        all: &[&Arrival],
        bodies: Option<&BTreeSet<&str>>,
        report: &mut Report,
    ) {
        match bodies {
            None => report.foreign.push(delivery.clone()),
            Some(hashes) => {
                if all
                    .iter()
                    .any(|arrival| !hashes.contains(arrival.body_sha256.as_str()))
                {
                    report.altered.push(delivery.clone());
                }
            }
        }
        let ids: BTreeSet<_> = all.iter().map(|arrival| &arrival.webhook_id).collect();
        if ids.len() > 1 || all.iter().any(|arrival| arrival.webhook_id.is_empty()) {
            report.renamed.push(delivery.clone());
        }
        let accepted: Vec<_> = all.iter().filter(|arrival| arrival.accepted()).collect();
        let earlier = accepted.len().saturating_sub(1);
        if earlier == 0 {
            return;
        }
        if accepted
            .iter()
            .take(earlier)
            .all(|arrival| self.in_flight_at_a_kill(arrival))
        {
            report.repeated_by_kill.push(delivery.clone());
        } else {
            report.doubled.push(delivery.clone());
        }
    }

    fn in_flight_at_a_kill(&self, arrival: &Arrival) -> bool {
        let ended_ms = arrival.answered_at_ms.unwrap_or(arrival.at_ms);
        self.kills_ms
            .iter()
            .any(|kill_ms| (-ON_THE_WIRE_MS..=IN_FLIGHT_MS).contains(&(kill_ms - ended_ms)))
    }

    /// How long, after the kill at `kill_ms`, the slowest delivery acknowledged before it waited for its next attempt.
    /// Milliseconds; none when nothing was open.
    pub fn longest_wait_ms(&self, kill_ms: i64) -> Option<i64> {
        let arrivals = self.by_delivery();
        let before: BTreeSet<_> = self
            .sent
            .iter()
            .filter(|sent| sent.acknowledged() && sent.at_ms <= kill_ms)
            .map(|sent| sent.delivery_id.as_str())
            .collect();
        let next = |all: &Vec<&Arrival>| {
            all.iter()
                .map(|arrival| arrival.at_ms - kill_ms)
                .filter(|wait| *wait >= 0)
                .min()
        };
        arrivals
            .iter()
            .filter(|((_, id), _)| before.contains(id.as_str()))
            .filter_map(|(_, all)| next(all))
            .max()
    }

    /// Every delivery that was acknowledged, once.
    fn owed(&self) -> BTreeSet<Delivery> {
        let mut owed = BTreeSet::new();
        for sent in self.sent.iter().filter(|sent| sent.acknowledged()) {
            for (_, path) in &self.destinations {
                owed.insert((path.clone(), sent.delivery_id.clone()));
            }
        }
        owed
    }

    /// Dead letters under the path of their destination.
    fn dead(&self) -> BTreeSet<Delivery> {
        let path = |name: &str| {
            self.destinations
                .iter()
                .find(|known| known.0 == name)
                .map(|known| known.1.clone())
        };
        self.dead_letters
            .iter()
            .filter_map(|letter| Some((path(&letter.destination)?, letter.delivery_id.clone())))
            .collect()
    }

    /// Arrivals of each delivery, in order.
    pub fn by_delivery(&self) -> BTreeMap<Delivery, Vec<&Arrival>> {
        let mut all: BTreeMap<Delivery, Vec<&Arrival>> = BTreeMap::new();
        for arrival in &self.arrivals {
            let key = (arrival.path.clone(), arrival.delivery_id.clone());
            all.entry(key).or_default().push(arrival);
        }
        all
    }
}

// === impl Report ===

impl Report {
    /// Panics with the whole report unless nothing is wrong. Repeats that a kill explains are no fault.
    pub fn assert_clean(&self) {
        let clean = self.lost.is_empty()
            && self.doubled.is_empty()
            && self.altered.is_empty()
            && self.foreign.is_empty()
            && self.renamed.is_empty();
        assert!(clean, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "oracle: {} owed, {} delivered, {} dead-lettered",
            self.obligations, self.delivered, self.dead_lettered
        )?;
        for (name, cases) in [
            ("lost", &self.lost),
            ("doubled", &self.doubled),
            ("repeated by a kill", &self.repeated_by_kill),
            ("altered", &self.altered),
            ("foreign", &self.foreign),
            ("renamed", &self.renamed),
        ] {
            let shown: Vec<_> = cases.iter().take(SHOWN_MAX).collect();
            writeln!(f, "  {name}: {} {shown:?}", cases.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: &str, status: u16) -> Sent {
        let (delivery_id, body_sha256) = (id.to_owned(), "aa".to_owned());
        Sent {
            delivery_id,
            body_sha256,
            status: Some(status),
            failure: String::new(),
            at_ms: 0,
        }
    }

    fn arrival(id: &str, status: u16, at_ms: i64) -> Arrival {
        Arrival {
            path: "/x".into(),
            delivery_id: id.into(),
            webhook_id: format!("w_{id}"),
            attempt: 1,
            sent_by: None,
            body_sha256: "aa".into(),
            headers: http::HeaderMap::new(),
            status: Some(status),
            at_ms,
            answered_at_ms: Some(at_ms),
            uncertain: false,
        }
    }

    fn oracle(sent: Vec<Sent>, arrivals: Vec<Arrival>) -> Oracle {
        let destinations = vec![("x".to_owned(), "/x".to_owned())];
        Oracle {
            sent,
            arrivals,
            destinations,
            ..Oracle::default()
        }
    }

    fn ids(cases: &[Delivery]) -> Vec<&str> {
        cases.iter().map(|case| case.1.as_str()).collect()
    }

    #[test]
    fn what_was_not_accepted_is_lost_and_what_was_not_acknowledged_is_not_owed() {
        let sent = vec![sent("a", 202), sent("b", 202), sent("c", 503)];
        let report = oracle(sent, vec![arrival("a", 200, 1), arrival("b", 500, 1)]).judge();
        assert_eq!((report.obligations, report.delivered), (2, 1));
        assert_eq!(ids(&report.lost), ["b"]);
    }

    #[test]
    fn an_answer_that_may_not_have_got_out_leaves_nothing_open_and_makes_no_repeat() {
        let mut uncertain = arrival("a", 200, 1);
        uncertain.uncertain = true;
        uncertain.status = None;
        let alone = oracle(vec![sent("a", 200)], vec![uncertain.clone()]).judge();
        assert!(alone.lost.is_empty());
        let again = oracle(
            vec![sent("a", 200)],
            vec![uncertain, arrival("a", 200, 9_000)],
        );
        assert!(again.judge().doubled.is_empty());
    }

    #[test]
    fn a_second_acceptance_is_doubled_unless_a_kill_explains_it() {
        let arrivals = vec![
            arrival("a", 200, 10_000),
            arrival("a", 200, 20_000),
            arrival("b", 200, 14_000),
            arrival("b", 200, 30_000),
            arrival("c", 500, 1),
            arrival("c", 200, 2),
        ];
        let mut oracle = oracle(
            vec![sent("a", 200), sent("b", 200), sent("c", 200)],
            arrivals,
        );
        assert_eq!(ids(&oracle.judge().doubled), ["a", "b"]);
        oracle.kills_ms = vec![15_000];
        let report = oracle.judge();
        assert_eq!(ids(&report.doubled), ["a"]);
        assert_eq!(ids(&report.repeated_by_kill), ["b"]);
        assert_eq!(oracle.longest_wait_ms(15_000), Some(15_000));
    }

    #[test]
    fn other_bytes_other_names_and_unknown_ids_are_seen() {
        let mut other = arrival("a", 500, 1);
        other.body_sha256 = "bb".into();
        let mut renamed = arrival("a", 200, 2);
        renamed.webhook_id = "w_other".into();
        let report = oracle(
            vec![sent("a", 200)],
            vec![other, renamed, arrival("z", 200, 3)],
        )
        .judge();
        assert_eq!(ids(&report.altered), ["a"]);
        assert_eq!(ids(&report.renamed), ["a"]);
        assert_eq!(ids(&report.foreign), ["z"]);
    }
}
