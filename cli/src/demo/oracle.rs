//! The count: what was acknowledged is owed, and what is owed must have arrived once, or lie among the dead letters.

use super::{
    load::Plan,
    receivers::{Arrival, DESTINATIONS},
};
use schemas::DeadLetter;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What the pipeline answered to the sender.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Vec<Answer>>);

/// One answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Index into the plan's webhooks.
    pub webhook: usize,
    pub repeat: bool,
    pub forged: bool,
    /// HTTP status, 0 without one.
    pub status: u16,
    /// When the request began, milliseconds since the Unix epoch.
    pub begun_at_ms: i64,
}

/// What came of everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// Answers given so far.
    pub answered: usize,
    /// Webhooks acknowledged with 2xx.
    pub accepted: usize,
    /// Forgeries answered 401.
    pub refused: usize,
    /// Repeats acknowledged with 2xx.
    pub duplicates: usize,
    /// Deliveries that the accepted webhooks make.
    pub owed: usize,
    /// Deliveries that a receiver took with 2xx.
    pub delivered: usize,
    /// Deliveries among the dead letters, by reason.
    pub dead: BTreeMap<String, usize>,
    /// Owed, but neither delivered nor dead, or with another body, or dead for the wrong reason.
    pub lost: usize,
    /// Ended more than once (taken or dead), or ended although never acknowledged, or a forgery that got in.
    pub doubled: usize,
    /// From request to 2xx at the receiver, milliseconds, sorted, by destination.
    pub latencies_ms: Vec<Vec<i64>>,
}

/// Judges what is known. Without the dead letters everything that is not delivered counts as open, see [`Verdict::open`].
pub(crate) fn judge(
    plan: &Plan,
    answers: &[Answer],
    arrivals: &[Arrival],
    letters: Option<&[DeadLetter]>,
) -> Verdict {
    let mut verdict = Verdict {
        answered: answers.len(),
        latencies_ms: vec![Vec::new(); DESTINATIONS.len()],
        ..Verdict::default()
    };
    let begun = accepted(answers, &mut verdict);
    let taken = taken(arrivals);
    let mut dead = dead(letters.unwrap_or_default());
    let mut known = BTreeSet::new();
    for (&webhook, &begun_at_ms) in &begun {
        let Some(genuine) = plan.webhooks.get(webhook) else {
            continue;
        };
        for (at, destination) in DESTINATIONS.iter().enumerate() {
            if !destination.takes(genuine.event) {
                continue;
            }
            verdict.owed += 1;
            let id = webhook_id(&genuine.delivery_id);
            let arrived = taken.get(&(at, id.as_str()));
            known.insert((at, id.clone()));
            let letters = dead.remove(&(genuine.delivery_id.as_str(), destination.name));
            let ends = arrived.map_or(0, Vec::len) + letters.as_ref().map_or(0, BTreeMap::len);
            verdict.doubled += ends.saturating_sub(1);
            match (arrived, letters) {
                (Some(times), None) => {
                    verdict.delivered += 1;
                    verdict.lost += usize::from(times.iter().any(|a| a.digest != genuine.digest));
                    if let Some(first) = times.first() {
                        verdict.latencies_ms[at].push(first.at_ms.saturating_sub(begun_at_ms));
                    }
                }
                (None, Some(letters)) => {
                    for letter in letters.values() {
                        let reason = letter.reason.as_str();
                        *verdict.dead.entry(reason.to_owned()).or_default() += 1;
                    }
                    let wrong =
                        |letter: &&DeadLetter| destination.dead != Some(letter.reason.as_str());
                    verdict.lost += usize::from(letters.values().any(wrong));
                }
                // Neither lost nor in order: counted above.
                (Some(_), Some(_)) => {}
                (None, None) => verdict.lost += 1,
            }
        }
    }
    verdict.doubled += taken
        .keys()
        .filter(|(at, id)| !known.contains(&(*at, (*id).to_owned())))
        .count();
    verdict.doubled += dead.values().map(BTreeMap::len).sum::<usize>();
    for latencies in &mut verdict.latencies_ms {
        latencies.sort_unstable();
    }
    verdict
}

/// `webhook-id` of a delivery of the demo's source.
fn webhook_id(delivery_id: &str) -> String {
    format!("github_{delivery_id}")
}

/// The acknowledged webhooks and when their first request began.
fn accepted(answers: &[Answer], verdict: &mut Verdict) -> BTreeMap<usize, i64> {
    let mut begun: BTreeMap<usize, i64> = BTreeMap::new();
    for answer in answers {
        let good = (200..300).contains(&answer.status);
        if answer.forged {
            verdict.refused += usize::from(answer.status == 401);
            verdict.doubled += usize::from(good);
            continue;
        }
        if !good {
            continue;
        }
        verdict.duplicates += usize::from(answer.repeat);
        let first = begun.entry(answer.webhook).or_insert(answer.begun_at_ms);
        *first = (*first).min(answer.begun_at_ms);
    }
    verdict.accepted = begun.len();
    begun
}

fn taken(arrivals: &[Arrival]) -> HashMap<(usize, &str), Vec<&Arrival>> {
    let mut taken: HashMap<(usize, &str), Vec<&Arrival>> = HashMap::new();
    for arrival in arrivals.iter().filter(|arrival| arrival.taken) {
        taken
            .entry((arrival.destination, &arrival.webhook_id))
            .or_default()
            .push(arrival);
    }
    taken
}

/// Dead letters by delivery and id: copies that publishing has left count once, further generations of a delivery do not.
fn dead(letters: &[DeadLetter]) -> HashMap<(&str, &str), BTreeMap<&str, &DeadLetter>> {
    let mut dead: HashMap<(&str, &str), BTreeMap<&str, &DeadLetter>> = HashMap::new();
    for letter in letters {
        dead.entry((&letter.delivery_id, &letter.destination))
            .or_default()
            .insert(&letter.dead_letter_id, letter);
    }
    dead
}

// === impl Verdict ===

impl Verdict {
    /// Deliveries that were not taken yet. Some of them shall end as dead letters.
    pub(crate) fn open(&self) -> usize {
        self.owed - self.delivered
    }

    /// Deliveries among the dead letters.
    pub(crate) fn dead_lettered(&self) -> usize {
        self.dead.values().sum()
    }
}

// === impl Tally ===

impl Tally {
    /// Writes an answer down.
    pub(crate) fn note(&self, answer: Answer) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(answer);
    }

    /// The answers so far.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::receivers::Destination, *};
    use bytes::Bytes;
    use schemas::{Origin, Reason};

    fn answer(webhook: usize, status: u16) -> Answer {
        Answer {
            webhook,
            repeat: false,
            forged: false,
            status,
            begun_at_ms: 100,
        }
    }

    fn arrival(plan: &Plan, webhook: usize) -> Arrival {
        let genuine = &plan.webhooks[webhook];
        Arrival {
            destination: 0,
            webhook_id: webhook_id(&genuine.delivery_id),
            digest: genuine.digest,
            at_ms: 130,
            taken: true,
        }
    }

    /// The count must be able to find what it counts.
    #[test]
    fn finds_what_was_lost_doubled_changed_or_made_up() {
        let plan = Plan::new(50, 1);
        let push = plan
            .webhooks
            .iter()
            .position(|webhook| webhook.event == "push")
            .unwrap();
        let answers = [answer(push, 202)];
        let good = arrival(&plan, push);
        let judge = |arrivals: &[Arrival]| {
            let verdict = judge(&plan, &answers, arrivals, Some(&[]));
            (verdict.lost, verdict.doubled)
        };
        assert_eq!(judge(std::slice::from_ref(&good)), (0, 0));
        assert_eq!(judge(&[]), (1, 0));
        assert_eq!(judge(&[good.clone(), good.clone()]), (0, 1));
        assert_eq!(
            judge(&[Arrival {
                digest: [0; 32],
                ..good.clone()
            }]),
            (1, 0)
        );
        assert_eq!(
            judge(&[Arrival {
                taken: false,
                ..good.clone()
            }]),
            (1, 0)
        );
        let stranger = Arrival {
            webhook_id: "github_nobody".to_owned(),
            ..good
        };
        assert_eq!(judge(&[good, stranger]), (0, 1));
    }

    fn letter(plan: &Plan, webhook: usize, destination: &Destination, id: &str) -> DeadLetter {
        DeadLetter {
            dead_letter_id: id.to_owned(),
            source: "github".to_owned(),
            delivery_id: plan.webhooks[webhook].delivery_id.clone(),
            destination: destination.name.to_owned(),
            event_type: plan.webhooks[webhook].event.to_owned(),
            reason: Reason::parse(destination.dead.unwrap_or("gone")),
            detail: String::new(),
            attempts: 1,
            generation: 0,
            last_status: None,
            received_at_ms: 0,
            failed_at_ms: 1,
            history: Vec::new(),
            content_type: None,
            headers: Vec::new(),
            body: Bytes::new(),
            origin: Origin {
                topic: String::new(),
                partition: 0,
                offset: 0,
            },
        }
    }

    #[test]
    fn every_end_beyond_the_first_counts() {
        let plan = Plan::new(200, 1);
        // An event that one destination takes which lets everything die, and what others do with it.
        let (at, dying) = DESTINATIONS
            .iter()
            .enumerate()
            .find(|(_, destination)| destination.dead.is_some())
            .unwrap();
        let webhook = plan
            .webhooks
            .iter()
            .position(|webhook| dying.takes(webhook.event))
            .unwrap();
        let event = plan.webhooks[webhook].event;
        let others: Vec<Arrival> = (0..DESTINATIONS.len())
            .filter(|other| *other != at && DESTINATIONS[*other].takes(event))
            .map(|destination| Arrival {
                destination,
                ..arrival(&plan, webhook)
            })
            .collect();
        let here = Arrival {
            destination: at,
            ..arrival(&plan, webhook)
        };
        let answers = [answer(webhook, 202)];
        let judge = |times: usize, letters: &[DeadLetter]| {
            let mut arrivals = others.clone();
            arrivals.extend(std::iter::repeat_n(here.clone(), times));
            let verdict = judge(&plan, &answers, &arrivals, Some(letters));
            (verdict.lost, verdict.doubled, verdict.dead_lettered())
        };
        let first = letter(&plan, webhook, dying, "a");
        let again = letter(&plan, webhook, dying, "b");
        assert_eq!(judge(0, std::slice::from_ref(&first)), (0, 0, 1));
        assert_eq!(
            judge(0, &[first.clone(), first.clone()]),
            (0, 0, 1),
            "a copy"
        );
        assert_eq!(judge(0, &[first.clone(), again]), (0, 1, 2), "a generation");
        assert_eq!(
            judge(2, std::slice::from_ref(&first)),
            (0, 2, 0),
            "and delivered twice"
        );
        let stranger = DeadLetter {
            delivery_id: "nobody".to_owned(),
            ..first.clone()
        };
        assert_eq!(
            judge(0, &[first, stranger]),
            (0, 1, 1),
            "never acknowledged"
        );
    }

    #[test]
    fn a_forgery_that_gets_in_counts() {
        let plan = Plan::new(50, 1);
        let forged = |status| Answer {
            forged: true,
            ..answer(0, status)
        };
        let verdict = judge(&plan, &[forged(401), forged(202)], &[], None);
        assert_eq!((verdict.refused, verdict.doubled, verdict.owed), (1, 1, 0));
    }
}
