use super::{
    records::{Fill, pause_delay, share},
    *,
};
use crate::{Position, Room};
use bytes::Bytes;

const LIMITS: Limits = Limits {
    main_records: 8,
    main_bytes: 1_000,
    delay_records: 8,
    delay_bytes: 12_000,
    lead_ms: 2_000,
};

fn inbox(partitions: &[u32]) -> Inbox {
    let mut inbox = Inbox::new(LIMITS, Arc::default());
    inbox.assign(partitions);
    inbox
}

fn record(
    inbox: &Inbox,
    topic: Topic,
    partition: u32,
    offset: i64,
    appended_at_ms: i64,
) -> Received {
    Received {
        topic,
        partition,
        offset,
        epoch: inbox.epoch(partition).expect("owned"),
        appended_at_ms,
        key: Bytes::new(),
        value: Bytes::from_static(b"0123456789"),
        headers: Vec::new(),
    }
}

fn push(inbox: &mut Inbox, topic: Topic, partition: u32, offset: i64, appended_at_ms: i64) {
    let record = record(inbox, topic, partition, offset, appended_at_ms);
    inbox.push(record);
}

/// Offsets of the records taken; ownership events are skipped.
fn taken(inbox: &mut Inbox, room: impl Into<Room>, now_ms: i64) -> Vec<(Topic, i64)> {
    let events = inbox.take(&room.into(), now_ms).expect("no failure");
    let records = events.into_iter().filter_map(|event| match event {
        Event::Record(record) => Some((record.topic, record.offset)),
        Event::Assigned { .. } | Event::Revoked(_) => None,
    });
    records.collect()
}

fn watermark(partition: u32, epoch: Epoch, next_offset: i64) -> Watermark {
    Watermark {
        topic: Topic::Webhooks,
        partition,
        epoch,
        next_offset,
    }
}

const S5: Topic = Topic::Delay(DelayTier::S5);
const S30: Topic = Topic::Delay(DelayTier::S30);

#[test]
fn a_delay_record_is_never_early_and_never_late() {
    let mut inbox = inbox(&[0]);
    push(&mut inbox, S5, 0, 1, 1_000);
    assert_eq!(inbox.next_due_ms(&Room::new(1)), Some(6_000));
    assert_eq!(taken(&mut inbox, 9, 5_999), []);
    assert_eq!(taken(&mut inbox, 9, 6_000), [(S5, 1)]);
    assert_eq!(inbox.next_due_ms(&Room::new(1)), None);
}

#[test]
fn the_earliest_due_come_first_and_a_tier_keeps_its_order() {
    let mut inbox = inbox(&[0, 1]);
    push(&mut inbox, S30, 0, 7, 0);
    push(&mut inbox, S5, 1, 1, 24_000);
    // The broker's clock was set back: the later record must not pass the one before it.
    push(&mut inbox, S5, 1, 2, 1_000);
    push(&mut inbox, S5, 0, 3, 25_500);
    assert_eq!(inbox.next_due_ms(&Room::new(1)), Some(29_000));
    let all = [(S5, 1), (S5, 2), (S30, 7), (S5, 3)];
    assert_eq!(taken(&mut inbox, 9, 40_000), all);
}

#[test]
fn webhooks_and_delay_records_share_the_room() {
    assert_eq!(share(10, 100, 100, true), (5, 5));
    assert_eq!(share(10, 2, 100, true), (2, 8));
    assert_eq!(share(10, 100, 3, true), (7, 3));
    assert_eq!(share(1, 5, 5, true), (1, 0));
    assert_eq!(share(1, 5, 5, false), (0, 1));
    assert_eq!(share(0, 5, 5, true), (0, 0));
    let mut inbox = inbox(&[0]);
    for offset in 0..2 {
        push(&mut inbox, Topic::Webhooks, 0, offset, 0);
        push(&mut inbox, S5, 0, offset, 0);
    }
    let by_turns: Vec<_> = (0..4).flat_map(|_| taken(&mut inbox, 1, 5_000)).collect();
    let main = by_turns.iter().filter(|(topic, _)| *topic == S5).count();
    assert_eq!((by_turns.len(), main), (4, 2));
    assert_ne!(by_turns[0].0, by_turns[1].0);
}

#[test]
fn no_room_still_tells_of_ownership() {
    let mut inbox = inbox(&[3]);
    push(&mut inbox, Topic::Webhooks, 3, 0, 0);
    let events = inbox.take(&Room::new(0), 0).expect("no failure");
    assert!(matches!(events[..], [Event::Assigned { partition: 3, .. }]));
    assert!(inbox.take(&Room::new(0), 0).expect("no failure").is_empty());
}

#[test]
fn revoked_records_are_gone_and_late_ones_are_dropped() {
    let mut inbox = inbox(&[0, 1]);
    push(&mut inbox, Topic::Webhooks, 0, 4, 0);
    push(&mut inbox, Topic::Webhooks, 1, 5, 0);
    push(&mut inbox, S5, 0, 6, 0);
    let late = record(&inbox, Topic::Webhooks, 0, 7, 0);
    let leaving = inbox.begin_revoke(&[0], false).expect("owned");
    inbox.push(late.clone());
    inbox.end_revoke(&leaving.partitions, &[]);
    inbox.assign(&[0]);
    // Read under the old epoch, put in under the new one: would let a watermark pass what was not read again.
    inbox.push(late);
    assert_eq!(taken(&mut inbox, 9, 99_999), [(Topic::Webhooks, 5)]);
}

#[test]
fn empty_and_unknown_lists_are_nothing() {
    let mut inbox = inbox(&[0]);
    assert_eq!(inbox.assign(&[]), []);
    assert!(inbox.begin_revoke(&[], false).is_none());
    assert!(inbox.begin_revoke(&[9], true).is_none());
    assert_eq!(inbox.owned().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_release_commits_the_last_watermarks_of_what_leaves() {
    let mut inbox = inbox(&[0, 1]);
    let (zero, one) = (
        inbox.epoch(0).expect("owned"),
        inbox.epoch(1).expect("owned"),
    );
    inbox.note(&[watermark(0, zero, 5), watermark(1, one, 6)]);
    assert_eq!(inbox.take_commits().len(), 2);
    let leaving = inbox.begin_revoke(&[0], false).expect("owned");
    assert_eq!(leaving.partitions, [(0, zero)]);
    // Finished while the answer is awaited, and in the answer itself.
    inbox.note(&[watermark(0, zero, 7)]);
    let last = inbox.end_revoke(&leaving.partitions, &[watermark(0, zero, 8)]);
    assert_eq!(last, [watermark(0, zero, 8)]);
    inbox.note(&[watermark(0, zero, 9)]);
    assert_eq!(inbox.take_commits(), []);
}

#[test]
fn without_an_answer_what_was_noted_is_committed_even_if_sent() {
    let mut inbox = inbox(&[0]);
    let epoch = inbox.epoch(0).expect("owned");
    inbox.note(&[watermark(0, epoch, 5)]);
    assert_eq!(inbox.take_commits().len(), 1);
    let leaving = inbox.begin_revoke(&[0], false).expect("owned");
    let last = inbox.end_revoke(&leaving.partitions, &[]);
    assert_eq!(last, [watermark(0, epoch, 5)]);
}

#[test]
fn nothing_is_taken_of_a_lost_assignment() {
    let mut inbox = inbox(&[0]);
    let epoch = inbox.epoch(0).expect("owned");
    inbox.note(&[watermark(0, epoch, 5)]);
    inbox.begin_revoke(&[0], true).expect("owned");
    inbox.note(&[watermark(0, epoch, 6)]);
    assert_eq!(inbox.last_commits(), []);
}

#[test]
fn a_stale_epoch_commits_nothing() {
    let mut inbox = inbox(&[0]);
    let stale = inbox.epoch(0).expect("owned");
    inbox.begin_revoke(&[0], true).expect("owned");
    inbox.assign(&[0]);
    inbox.note(&[watermark(0, stale, 10)]);
    assert_eq!(inbox.take_commits(), []);
    let epoch = inbox.epoch(0).expect("owned");
    assert!(epoch > stale);
    inbox.note(&[watermark(0, epoch, 3)]);
    assert_eq!(inbox.take_commits(), [watermark(0, epoch, 3)]);
}

#[test]
fn a_commit_goes_once_unless_it_failed() {
    let mut inbox = inbox(&[0]);
    let epoch = inbox.epoch(0).expect("owned");
    inbox.note(&[watermark(0, epoch, 1)]);
    inbox.note(&[watermark(0, epoch, 2)]);
    assert_eq!(inbox.take_commits(), [watermark(0, epoch, 2)]);
    assert_eq!(inbox.take_commits(), []);
    inbox.commit_failed(&[(Topic::Webhooks, 0), (S5, 7)]);
    assert_eq!(inbox.take_commits(), [watermark(0, epoch, 2)]);
}

/// An answer never comes; what the statistics do not show in time goes once more.
#[test]
fn a_commit_that_is_not_seen_goes_again() {
    let mut inbox = inbox(&[0]);
    let epoch = inbox.epoch(0).expect("owned");
    let mark = watermark(0, epoch, 5);
    inbox.note(&[mark]);
    assert_eq!(inbox.take_commits(), [mark]);
    let hear = |inbox: &mut Inbox, committed_offset| {
        let told = Told {
            committed_offset,
            ..Told::default()
        };
        inbox.hear(Topic::Webhooks, 0, told);
        inbox.take_commits()
    };
    assert_eq!(hear(&mut inbox, None), []);
    assert_eq!(hear(&mut inbox, Some(4)), []);
    assert_eq!(hear(&mut inbox, Some(4)), [mark], "the third time");
    assert_eq!(hear(&mut inbox, Some(4)), []);
    for _ in 0..5 {
        assert_eq!(hear(&mut inbox, Some(5)), [], "seen");
    }
}

#[test]
fn only_delay_commits_are_refreshed() {
    let mut inbox = inbox(&[0]);
    let epoch = inbox.epoch(0).expect("owned");
    let delayed = Watermark {
        topic: S5,
        ..watermark(0, epoch, 4)
    };
    inbox.note(&[watermark(0, epoch, 1), delayed]);
    inbox.take_commits();
    assert_eq!(inbox.refresh_delay_commits(), [delayed]);
}

#[test]
fn reading_of_webhooks_pauses_by_records_and_by_bytes() {
    let mut inbox = inbox(&[0]);
    for offset in 0..8 {
        assert!(!inbox.pause_main(0, false), "{offset}");
        push(&mut inbox, Topic::Webhooks, 0, offset, 0);
    }
    assert!(inbox.pause_main(0, false));
    taken(&mut inbox, 5, 0);
    assert!(inbox.pause_main(0, true), "3 of 8 are above a quarter");
    assert!(!inbox.pause_main(0, false));
    taken(&mut inbox, 1, 0);
    assert!(!inbox.pause_main(0, true));
    let mut large = record(&inbox, Topic::Webhooks, 0, 9, 0);
    large.value = Bytes::from(vec![0; 1_000]);
    inbox.push(large);
    assert!(inbox.pause_main(0, false));
}

/// The partition that the dispatcher does not take from pauses alone, the others are read on within their shares, and what
/// is held stays bounded.
#[test]
fn a_full_partition_pauses_alone() {
    let mut inbox = inbox(&[0, 1]);
    for offset in 0..8 {
        assert!(!inbox.pause_main(0, false), "{offset}");
        push(&mut inbox, Topic::Webhooks, 0, offset, 0);
    }
    let mut full = Room::new(9);
    full.limit(0, 0);
    for offset in 0..4 {
        assert!(!inbox.pause_main(1, false), "{offset}");
        push(&mut inbox, Topic::Webhooks, 1, offset, 0);
    }
    assert!(inbox.pause_main(0, false) && inbox.pause_main(1, false));
    assert_eq!(taken(&mut inbox, full.clone(), 0).len(), 4);
    assert!(inbox.pause_main(0, true), "nobody takes from it");
    assert!(!inbox.pause_main(1, true));
    // A room that names it: not more than that.
    full.limit(0, 3);
    assert_eq!(taken(&mut inbox, full, 0).len(), 3);
    assert_eq!(taken(&mut inbox, 9, 0).len(), 5);
    assert!(!inbox.pause_main(0, true));
}

#[test]
fn a_full_partition_waits_for_nothing_that_is_due() {
    let mut inbox = inbox(&[0, 1]);
    push(&mut inbox, S5, 0, 1, 0);
    push(&mut inbox, S5, 1, 1, 1_000);
    let mut room = Room::new(9);
    room.limit(0, 0);
    assert_eq!(inbox.next_due_ms(&room), Some(6_000));
    assert_eq!(taken(&mut inbox, room, 9_000), [(S5, 1)]);
    assert_eq!(inbox.next_due_ms(&Room::new(1)), Some(5_000));
}

/// Webhooks and due records of a partition with room for one come both.
#[test]
fn a_partition_with_little_room_serves_webhooks_and_delay_records() {
    let mut inbox = inbox(&[0]);
    for offset in 0..32 {
        push(&mut inbox, Topic::Webhooks, 0, offset, 0);
        push(&mut inbox, S5, 0, offset, 0);
    }
    let mut room = Room::new(99);
    room.limit(0, 1);
    let taken: Vec<_> = (0..32)
        .flat_map(|_| taken(&mut inbox, room.clone(), 5_000))
        .collect();
    let main = taken.iter().filter(|(topic, _)| *topic == S5).count();
    assert_eq!((taken.len(), main), (32, 16));
}

#[test]
fn a_delay_partition_is_filled_up_shortly_before_its_last_record_is_due() {
    let pause = |paused, soon, held| pause_delay(paused, soon, Fill { held, max: 8 });
    assert!(!pause(false, false, 3));
    assert!(pause(false, false, 4));
    assert!(pause(true, false, 3));
    assert!(!pause(true, false, 2));
    assert!(!pause(true, true, 4));
    assert!(!pause(false, true, 7));
    assert!(pause(false, true, 8), "never beyond the bound");
    assert!(pause(true, true, 5));
    let mut inbox = inbox(&[0]);
    for offset in 0..4 {
        push(&mut inbox, S5, 0, offset, 10_000);
    }
    assert!(inbox.pause_delay(DelayTier::S5, 0, false, 12_999));
    assert!(!inbox.pause_delay(DelayTier::S5, 0, false, 13_000));
    assert!(
        !inbox.pause_delay(DelayTier::S30, 0, true, 0),
        "nothing held"
    );
}

#[test]
fn a_large_delay_record_pauses_its_partition_alone() {
    let mut inbox = inbox(&[0, 1]);
    // 12,000 bytes over 2 partitions and 6 tiers: 1,000 each.
    let mut large = record(&inbox, S5, 0, 0, 0);
    large.value = Bytes::from(vec![0; 500]);
    inbox.push(large);
    assert!(inbox.pause_delay(DelayTier::S5, 0, false, 0));
    assert!(!inbox.pause_delay(DelayTier::S5, 1, false, 0));
}

#[test]
fn positions_say_what_was_not_handed_out() {
    let mut inbox = inbox(&[0]);
    let told = |next_offset, end_offset| Told {
        next_offset,
        end_offset,
        ..Told::default()
    };
    inbox.hear(Topic::Webhooks, 0, told(Some(3), Some(9)));
    inbox.hear(S5, 0, told(None, Some(2)));
    inbox.hear(Topic::Webhooks, 5, told(Some(3), Some(9)));
    let at = |next_offset, end_offset| Position {
        topic: Topic::Webhooks,
        partition: 0,
        next_offset,
        end_offset: Some(end_offset),
    };
    assert_eq!(inbox.positions(), [at(3, 9)]);
    push(&mut inbox, Topic::Webhooks, 0, 4, 0);
    push(&mut inbox, Topic::Webhooks, 0, 20, 0);
    assert_eq!(inbox.positions(), [at(4, 21)]);
    taken(&mut inbox, 9, 0);
    assert_eq!(inbox.positions(), [at(21, 21)]);
}

/// Retention went past what the group has finished.
#[test]
fn records_that_were_deleted_unfinished_are_told_once() {
    let mut inbox = inbox(&[0]);
    let mut hear = |begin_offset, committed_offset| {
        let told = Told {
            begin_offset,
            committed_offset,
            ..Told::default()
        };
        inbox.hear(Topic::Webhooks, 0, told)
    };
    assert_eq!(hear(Some(7), None), None, "nothing was ever committed");
    assert_eq!(hear(None, Some(3)), None);
    assert_eq!(hear(Some(3), Some(3)), None, "all before it was finished");
    let skip = Skip {
        committed_offset: 3,
        begin_offset: 4,
    };
    assert_eq!(hear(Some(4), Some(3)), Some(skip));
    assert_eq!(hear(Some(5), Some(3)), None, "told");
    assert_eq!(
        hear(Some(9), Some(6)).map(|skip| skip.begin_offset),
        Some(9)
    );
    let epoch = inbox.epoch(0).expect("owned");
    inbox.note(&[watermark(0, epoch, 12)]);
    let told = Told {
        begin_offset: Some(12),
        committed_offset: Some(10),
        ..Told::default()
    };
    assert_eq!(
        inbox.hear(Topic::Webhooks, 0, told),
        None,
        "finished, and about to be committed"
    );
}

#[test]
fn readings_say_where_reading_is_and_whether_it_was_offered_room() {
    let mut inbox = inbox(&[0, 4]);
    inbox.hear(
        S5,
        4,
        Told {
            next_offset: Some(2),
            drained_to: Some(3),
            ..Told::default()
        },
    );
    push(&mut inbox, Topic::Webhooks, 0, 8, 0);
    let readings = inbox.readings(false, 0);
    assert_eq!(readings.len(), 2 * (1 + DelayTier::ALL.len()));
    let of = |topic, partition| readings[&(topic, partition)];
    let expected = Reading {
        epoch: inbox.epoch(4).expect("owned"),
        next_offset: Some(2),
        drained_to: Some(3),
        full: false,
    };
    assert_eq!(of(S5, 4), expected);
    assert_eq!(of(Topic::Webhooks, 0).next_offset, Some(9));
    assert_eq!(of(Topic::Webhooks, 4).next_offset, None);
    assert!(inbox.readings(true, 0)[&(Topic::Webhooks, 4)].full);
    for offset in 9..12 {
        push(&mut inbox, Topic::Webhooks, 0, offset, 0);
    }
    let full = |partition| inbox.readings(false, 0)[&(Topic::Webhooks, partition)].full;
    assert!(full(0), "more than a quarter: it may be paused");
    assert!(!full(4), "one that is full pauses alone");
}

#[test]
fn a_passing_failure_is_told_once_a_fatal_one_always() {
    let mut inbox = inbox(&[0]);
    inbox.fail(LogError::Unavailable("x".into()));
    assert_eq!(taken(&mut inbox, 1, 0), [], "the assignment comes first");
    assert!(inbox.take(&Room::new(1), 0).is_err());
    assert!(inbox.take(&Room::new(1), 0).is_ok());
    inbox.fail(LogError::Unavailable("x".into()));
    inbox.fail(LogError::Fatal("y".into()));
    inbox.fail(LogError::Fatal("z".into()));
    for _ in 0..2 {
        assert_eq!(
            inbox.take(&Room::new(1), 0).err(),
            Some(LogError::Fatal("y".into()))
        );
    }
}

#[test]
fn shutting_answers_open_revocations() {
    let mut inbox = inbox(&[0]);
    let mut leaving = inbox.begin_revoke(&[0], false).expect("owned");
    assert!(
        leaving
            .answer
            .try_recv()
            .is_err_and(|error| { error == oneshot::error::TryRecvError::Empty })
    );
    inbox.shut();
    assert!(
        leaving
            .answer
            .try_recv()
            .is_err_and(|error| { error == oneshot::error::TryRecvError::Closed })
    );
}

#[test]
fn consumers_of_one_log_never_share_an_epoch() {
    let epochs = Arc::new(AtomicU64::new(0));
    let mut first = Inbox::new(LIMITS, Arc::clone(&epochs));
    let mut second = Inbox::new(LIMITS, epochs);
    assert_eq!(first.assign(&[0]), [(0, Epoch(1))]);
    assert_eq!(second.assign(&[0]), [(0, Epoch(2))]);
    assert_eq!(first.assign(&[1]), [(1, Epoch(3))]);
}
