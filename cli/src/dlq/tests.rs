use super::*;
use schemas::Origin;

fn letter(id: &str, failed_at_ms: i64, reason: Reason) -> DeadLetter {
    DeadLetter {
        dead_letter_id: id.to_owned(),
        source: "github".to_owned(),
        delivery_id: format!("delivery-{id}"),
        destination: "billing".to_owned(),
        event_type: "push".to_owned(),
        reason,
        detail: "status 500\u{1b}[31m".to_owned(),
        attempts: 3,
        generation: 0,
        last_status: Some(500),
        received_at_ms: 0,
        failed_at_ms,
        history: Vec::new(),
        content_type: None,
        headers: Vec::new(),
        body: b"secret body".as_slice().into(),
        origin: Origin {
            topic: "fencepost.webhooks".to_owned(),
            partition: 1,
            offset: 7,
        },
    }
}

fn ids(latest: &Latest) -> Vec<&str> {
    latest
        .letters()
        .map(|letter| letter.dead_letter_id.as_str())
        .collect()
}

#[test]
fn the_latest_come_first_and_older_ones_fall_off() {
    let mut latest = Latest::new(2);
    for (id, at_ms) in [("b", 20), ("a", 10), ("d", 40), ("c", 30)] {
        latest.add(letter(id, at_ms, Reason::Gone));
    }
    assert_eq!(ids(&latest), ["d", "c"]);
}

#[test]
fn copies_are_listed_once() {
    let mut latest = Latest::new(10);
    for at_ms in [20, 10, 30] {
        latest.add(letter("a", at_ms, Reason::Gone));
    }
    latest.add(letter("b", 25, Reason::Gone));
    assert_eq!(ids(&latest), ["a", "b"]);
}

#[test]
fn filters_combine() {
    let args = ListArgs {
        reason: Some("exhausted".to_owned()),
        destination: Some("billing".to_owned()),
        since: Some("10s".to_owned()),
        ..ListArgs::default()
    };
    let filter = Filter::new(&args, 100_000).unwrap();
    assert!(filter.takes(&letter("a", 90_000, Reason::Exhausted)));
    assert!(!filter.takes(&letter("a", 89_999, Reason::Exhausted)));
    assert!(!filter.takes(&letter("a", 90_000, Reason::Gone)));
    let elsewhere = DeadLetter {
        destination: "other".to_owned(),
        ..letter("a", 90_000, Reason::Exhausted)
    };
    assert!(!filter.takes(&elsewhere));
    let other_source = Filter {
        source: Some("stripe".to_owned()),
        ..Filter::default()
    };
    assert!(!other_source.takes(&letter("a", 0, Reason::Gone)));
}

#[test]
fn since_is_a_time_or_an_age() {
    assert_eq!(since("1970-01-01T00:00:05Z", 0).unwrap(), 5_000);
    assert_eq!(since("2h", 7_200_000).unwrap(), 0);
    for nonsense in ["", "yesterday", "-2h"] {
        assert!(
            matches!(since(nonsense, 0), Err(Failure::Config(_))),
            "{nonsense}"
        );
    }
    assert!(matches!(reason("bored"), Err(Failure::Config(_))));
}

#[test]
fn nothing_printed_moves_the_cursor_or_shows_the_body() {
    let letter = letter("a", 0, Reason::Gone);
    assert!(!letter_text(&letter).contains('\u{1b}'));
    for text in [letter_text(&letter), letter_json(&letter)] {
        assert!(!text.contains("secret body"));
        assert_eq!(text.matches('\n').count(), 1);
    }
}
