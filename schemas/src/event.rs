//! Event types and the patterns over them: one rule for a source's allow-list and for routes.

/// Whether an event type falls under a pattern: `*` is everything; `pull_request` and `pull_request.*` are that type and
/// everything below it, e.g. `pull_request.opened`. Names are those of the sender's documentation, which knows no actions.
///
/// A source's allow-list and routes follow the same rule, so that an event that is let in by a pattern is routed by it too.
pub fn event_matches(pattern: &str, event_type: &str) -> bool {
    let stem = pattern.strip_suffix(".*").unwrap_or(pattern);
    let below = event_type.strip_prefix(stem);
    pattern == "*" || below.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_take_a_type_and_what_is_below_it() {
        for (pattern, event_type, expected) in [
            ("push", "push", true),
            ("push", "pushed", false),
            ("push", "", false),
            ("pull_request", "pull_request.opened", true),
            ("pull_request.*", "pull_request.opened", true),
            ("pull_request.*", "pull_request", true),
            ("pull_request.*", "pull_request_review.submitted", false),
            ("pull_request.opened", "pull_request", false),
            ("*", "", true),
            ("*", "anything", true),
        ] {
            assert_eq!(
                event_matches(pattern, event_type),
                expected,
                "{pattern} {event_type}"
            );
        }
    }
}
