//! Routes: source + event filter → destinations.

use crate::config::RouteConfig;
use schemas::event_matches;
use std::collections::{BTreeMap, BTreeSet};

/// The destinations of a webhook, each once, in the order of the config.
pub fn destinations<'a>(routes: &'a [RouteConfig], source: &str, event_type: &str) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for route in routes.iter().filter(|route| route.source == source) {
        let wanted = match &route.events {
            None => true,
            Some(patterns) => patterns
                .iter()
                .any(|pattern| event_matches(pattern, event_type)),
        };
        if wanted {
            for to in &route.to {
                if !found.contains(&to.as_str()) {
                    found.push(to);
                }
            }
        }
    }
    found
}

/// The most destinations that a webhook can have: those that any route of its source names. At least 1.
pub fn fan_out_max(routes: &[RouteConfig]) -> usize {
    let mut of_source: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for route in routes {
        let to = route.to.iter().map(String::as_str);
        of_source.entry(&route.source).or_default().extend(to);
    }
    of_source.values().map(BTreeSet::len).fold(1, usize::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_destination_once() {
        let route = |source: &str, events: Option<&[&str]>, to: &[&str]| RouteConfig {
            source: source.to_owned(),
            events: events.map(|events| events.iter().map(|event| (*event).to_owned()).collect()),
            to: to.iter().map(|to| (*to).to_owned()).collect(),
        };
        let routes = [
            route("github", Some(&["push"]), &["a", "b"]),
            route("github", None, &["b", "c"]),
            route("stripe", None, &["d"]),
        ];
        assert_eq!(destinations(&routes, "github", "push"), ["a", "b", "c"]);
        assert_eq!(destinations(&routes, "github", "ping"), ["b", "c"]);
        assert!(destinations(&routes, "slack", "push").is_empty());
    }
}
