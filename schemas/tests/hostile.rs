//! Bytes from elsewhere: any value survives the way there and back, any other bytes give a typed error.

use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*};
use schemas::{
    AttemptSummary, Codec, DeadLetter, DecodeError, Delivery, Framing, Header, Origin, OutcomeKind,
    Reason, RegistryIds, VALUE_BYTES_MAX, Webhook,
};
use uuid::Uuid;

const GOLDEN: [&[u8]; 6] = [
    include_bytes!("golden/webhook.single.bin"),
    include_bytes!("golden/webhook.confluent.bin"),
    include_bytes!("golden/delivery.single.bin"),
    include_bytes!("golden/delivery.confluent.bin"),
    include_bytes!("golden/dead_letter.single.bin"),
    include_bytes!("golden/dead_letter.confluent.bin"),
];

proptest! {
    #[test]
    fn webhooks_come_back(value in webhook()) {
        for codec in codecs() {
            let bytes = codec.encode_webhook(&value).unwrap();
            prop_assert_eq!(codec.decode_webhook(&bytes).unwrap(), value.clone());
        }
    }

    #[test]
    fn deliveries_come_back(value in delivery()) {
        for codec in codecs() {
            let bytes = codec.encode_delivery(&value).unwrap();
            prop_assert_eq!(codec.decode_delivery(&bytes).unwrap(), value.clone());
        }
    }

    #[test]
    fn dead_letters_come_back(value in dead_letter()) {
        for codec in codecs() {
            let bytes = codec.encode_dead_letter(&value).unwrap();
            prop_assert_eq!(codec.decode_dead_letter(&bytes).unwrap(), value.clone());
        }
    }

    /// Several bytes wrong at once, behind a frame that is right.
    #[test]
    fn garbage_never_panics(
        at in any::<prop::sample::Index>(),
        garbage in vec(any::<u8>(), 0..64),
        golden in prop::sample::select(GOLDEN.to_vec()),
    ) {
        let mut bytes = golden.to_vec();
        let at = at.index(bytes.len());
        let end = (at + garbage.len()).min(bytes.len());
        bytes.splice(at..end, garbage);
        decode_all(&bytes);
    }
}

#[test]
fn every_truncation_and_every_extension_is_broken() {
    for golden in GOLDEN {
        assert_eq!(
            decode_all(golden)
                .iter()
                .filter(|error| error.is_none())
                .count(),
            1
        );
        for end in 0..golden.len() {
            assert!(
                decode_all(&golden[..end]).iter().all(Option::is_some),
                "{end}"
            );
        }
        let longer = [golden, &[0]].concat();
        let errors = decode_all(&longer);
        assert!(errors.iter().all(Option::is_some));
        let left_over = |error: &&DecodeError| matches!(error, DecodeError::Broken { cause, .. } if cause == "1 bytes behind the datum");
        assert_eq!(
            errors.iter().flatten().filter(left_over).count(),
            1,
            "{errors:?}"
        );
    }
}

#[test]
fn single_wrong_bytes_give_a_value_or_an_error() {
    for golden in GOLDEN {
        for at in 0..golden.len() {
            let mut bytes = golden.to_vec();
            for value in 0..=u8::MAX {
                bytes[at] = value;
                decode_all(&bytes);
            }
        }
    }
}

#[test]
fn each_error_has_its_bytes() {
    let [single, confluent] = codecs();
    let frame = |schema: &'static [u8], datum: &[u8]| [schema, datum].concat();
    let unknown = |schema: &str| DecodeError::UnknownSchema {
        record: "Webhook",
        schema: schema.to_owned(),
    };
    let datum = &GOLDEN[0][10..];
    let table: [(&Codec, Vec<u8>, DecodeError); 13] = [
        (&single, vec![], DecodeError::Short { bytes: 0 }),
        (&single, vec![0x00], DecodeError::Short { bytes: 1 }),
        (
            &single,
            vec![0x00, 0, 0, 0],
            DecodeError::Short { bytes: 4 },
        ),
        (&single, vec![0xC3], DecodeError::Short { bytes: 1 }),
        (
            &single,
            GOLDEN[0][..9].to_vec(),
            DecodeError::Short { bytes: 9 },
        ),
        (
            &single,
            b"{\"source\":\"github\"}".to_vec(),
            DecodeError::UnknownFrame { first: b'{' },
        ),
        (
            &single,
            vec![0xC3, 0x02, 0, 0, 0, 0, 0, 0, 0, 0],
            DecodeError::UnknownFrame { first: 0xC3 },
        ),
        // An Avro object container file.
        (
            &single,
            b"Obj\x01".to_vec(),
            DecodeError::UnknownFrame { first: b'O' },
        ),
        // No ids are configured, or another one, or another record's.
        (&single, frame(&[0, 0, 0, 0, 7], datum), unknown("id 7")),
        (
            &confluent,
            frame(&[0, 7, 0, 0, 0], datum),
            unknown("id 117440512"),
        ),
        (
            &confluent,
            frame(&[0, 0, 0, 1, 2], datum),
            unknown("id 258"),
        ),
        (
            &confluent,
            GOLDEN[2].to_vec(),
            unknown("fingerprint 045c33dad5b6938c"),
        ),
        (
            &confluent,
            frame(&[0xC3, 0x01, 1, 2, 3, 4, 5, 6, 7, 8], datum),
            unknown("fingerprint 0807060504030201"),
        ),
    ];
    for (codec, bytes, expected) in table {
        assert_eq!(codec.decode_webhook(&bytes), Err(expected), "{bytes:x?}");
    }
}

/// Lengths and counts that promise far more than there is: refused, and nothing of that size is allocated.
#[test]
fn hostile_lengths_are_broken() {
    let codec = Codec::default();
    let frame = &GOLDEN[0][..10];
    let huge: [&[u8]; 7] = [
        &[0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], // i64::MAX
        &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], // i64::MIN
        &[0x01],                                                       // -1
        &[0x80; 11],                                                   // no end
        &[0xFE, 0xFF, 0xFF, 0xFF, 0x0F],                               // 2 GiB
        &[0x82, 0x80, 0x80, 0x40],                                     // 64 MiB + 1
        &[0x80, 0x80, 0x80, 0x40],                                     // 64 MiB
    ];
    // As the length of the source, then as the count of the headers.
    for prefix in [&[][..], &[0, 0, 0, 0][..]] {
        for length in huge {
            let bytes = [frame, prefix, length].concat();
            let read = codec.decode_webhook(&bytes);
            assert!(
                matches!(read, Err(DecodeError::Broken { .. })),
                "{bytes:x?}: {read:?}"
            );
        }
    }
    // Errors go to logs: they stay short and hold nothing of the payload.
    let mut bytes = GOLDEN[4].to_vec();
    let at = bytes
        .windows(8)
        .position(|window| window == b"11111111")
        .unwrap();
    bytes[at] = b'x';
    let error = codec.decode_dead_letter(&bytes).unwrap_err().to_string();
    assert!(
        error.starts_with("broken DeadLetter: ") && error.len() < 300,
        "{error}"
    );
}

#[test]
fn too_large_is_refused_both_ways() {
    let codec = Codec::default();
    let mut value = Webhook {
        source: "s".to_owned(),
        delivery_id: "d".to_owned(),
        event_type: String::new(),
        content_type: None,
        headers: Vec::new(),
        body: Bytes::from(vec![0; VALUE_BYTES_MAX - 64]),
        received_at_ms: 0,
        generation: 0,
    };
    let bytes = codec.encode_webhook(&value).unwrap();
    assert_eq!(codec.decode_webhook(&bytes).as_ref(), Ok(&value));
    value.body = Bytes::from(vec![0; VALUE_BYTES_MAX]);
    let refused = codec.encode_webhook(&value).unwrap_err().to_string();
    assert!(refused.starts_with("can not encode Webhook: "), "{refused}");
    let longer = [GOLDEN[0], &vec![0; VALUE_BYTES_MAX][..]].concat();
    assert!(matches!(
        codec.decode_webhook(&longer),
        Err(DecodeError::Broken { .. })
    ));
}

fn codecs() -> [Codec; 2] {
    let ids = RegistryIds {
        webhook: 7,
        delivery: 258,
        dead_letter: u32::MAX,
    };
    [Codec::default(), Codec::new(Framing::Confluent(ids))]
}

/// Decodes as each record; what it is not, says why.
fn decode_all(bytes: &[u8]) -> [Option<DecodeError>; 3] {
    let [_, codec] = codecs();
    [
        codec.decode_webhook(bytes).err(),
        codec.decode_delivery(bytes).err(),
        codec.decode_dead_letter(bytes).err(),
    ]
}

fn blob() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn webhook() -> impl Strategy<Value = Webhook> {
    let strings = (
        any::<String>(),
        any::<String>(),
        any::<String>(),
        option::of(any::<String>()),
    );
    (strings, headers(), blob(), any::<i64>(), any::<u32>()).prop_map(
        |(strings, headers, body, received_at_ms, generation)| {
            let (source, delivery_id, event_type, content_type) = strings;
            Webhook {
                source,
                delivery_id,
                event_type,
                content_type,
                headers,
                body,
                received_at_ms,
                generation,
            }
        },
    )
}

fn headers() -> impl Strategy<Value = Vec<Header>> {
    vec(
        (any::<String>(), blob()).prop_map(|(name, value)| Header { name, value }),
        0..4,
    )
}

fn delivery() -> impl Strategy<Value = Delivery> {
    let numbers = (any::<u32>(), any::<u32>(), any::<i64>(), any::<u32>());
    let fence = option::of(any::<u128>().prop_map(Uuid::from_u128));
    (webhook(), any::<String>(), numbers, fence, history()).prop_map(
        |(webhook, destination, (attempt, generation, due_at_ms, deferred), fence, history)| {
            Delivery {
                webhook,
                destination,
                attempt,
                generation,
                fence,
                due_at_ms,
                deferred,
                history,
            }
        },
    )
}

fn history() -> impl Strategy<Value = Vec<AttemptSummary>> {
    let outcome = prop::sample::select(vec![
        OutcomeKind::Delivered,
        OutcomeKind::Rejected,
        OutcomeKind::Gone,
        OutcomeKind::Throttled,
        OutcomeKind::Failed,
        OutcomeKind::Blocked,
        OutcomeKind::Interrupted,
        OutcomeKind::Unknown,
    ]);
    let numbers = (any::<u32>(), any::<u128>(), any::<i64>(), any::<u32>());
    let summary = (numbers, outcome, option::of(any::<u16>()), any::<String>()).prop_map(
        |((attempt, token, started_at_ms, duration_ms), outcome, status, detail)| AttemptSummary {
            attempt,
            token: Uuid::from_u128(token),
            started_at_ms,
            duration_ms,
            outcome,
            status,
            detail,
        },
    );
    vec(summary, 0..4)
}

fn dead_letter() -> impl Strategy<Value = DeadLetter> {
    let reason = prop::sample::select([&Reason::ALL[..], &[Reason::Other]].concat());
    let texts = (any::<String>(), any::<String>(), any::<String>());
    let numbers = (any::<u32>(), option::of(any::<u16>()), any::<i64>());
    let origin = (any::<u32>(), any::<i64>());
    (webhook(), texts, numbers, reason, history(), origin).prop_map(
        |(webhook, texts, numbers, reason, history, (partition, offset))| DeadLetter {
            dead_letter_id: texts.0,
            source: webhook.source,
            delivery_id: webhook.delivery_id,
            destination: texts.1,
            event_type: webhook.event_type,
            reason,
            detail: texts.2,
            attempts: numbers.0,
            generation: webhook.generation,
            last_status: numbers.1,
            received_at_ms: webhook.received_at_ms,
            failed_at_ms: numbers.2,
            history,
            content_type: webhook.content_type,
            headers: webhook.headers,
            body: webhook.body,
            origin: Origin {
                topic: "t".to_owned(),
                partition,
                offset,
            },
        },
    )
}
