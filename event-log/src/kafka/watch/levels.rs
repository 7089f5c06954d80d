//! Whether all topics have the same number of partitions, and what it means for deliveries when they do not.

use schemas::{Topic, TopicNames};
use std::collections::BTreeMap;

/// What is wrong with these numbers of partitions, in words; none: they are level. Numbers may differ for a while, when
/// partitions are added under load; then nothing is lost, but something may wait.
pub(super) fn uneven(counts: &BTreeMap<Topic, u32>, names: &TopicNames) -> Option<String> {
    let webhooks = *counts.get(&Topic::Webhooks)?;
    let mut reasons = Vec::new();
    for (&topic, &count) in counts {
        if !matches!(topic, Topic::Delay(_)) || count == webhooks {
            continue;
        }
        let name = names.name(topic);
        let webhooks_name = names.name(Topic::Webhooks);
        if count > webhooks {
            reasons.push(format!(
                "{name} has {count} partitions where {webhooks_name} has {webhooks}: nobody reads those from {webhooks} on, \
                 and deliveries in them wait until {webhooks_name} has as many"
            ));
        } else {
            reasons.push(format!(
                "{name} has {count} partitions where {webhooks_name} has {webhooks}: retries crowd into fewer partitions"
            ));
        }
    }
    (!reasons.is_empty()).then(|| {
        format!(
            "{}; level them with `fencepost topics ensure --grow`",
            reasons.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::DelayTier;

    #[test]
    fn numbers_that_differ_are_said_with_what_they_mean() {
        let names = TopicNames::new("p");
        let tier = Topic::Delay(DelayTier::S5);
        let said = |webhooks, tier_count| {
            let counts = [
                (Topic::Webhooks, webhooks),
                (tier, tier_count),
                (Topic::DeadLetters, 1),
            ];
            uneven(&counts.into(), &names)
        };
        assert_eq!(said(4, 4), None);
        let more = said(2, 4).expect("said");
        assert!(
            more.contains(
                "p.delay.5s has 4 partitions where p.webhooks has 2: nobody reads those from 2 on"
            ),
            "{more}"
        );
        let fewer = said(4, 2).expect("said");
        assert!(
            fewer.contains("p.delay.5s has 2 partitions where p.webhooks has 4: retries crowd"),
            "{fewer}"
        );
        let unknown = BTreeMap::from([(tier, 2)]);
        assert_eq!(uneven(&unknown, &names), None, "webhooks not described");
    }
}
