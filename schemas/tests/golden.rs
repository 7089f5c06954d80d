//! The bytes on the wire do not change by accident, and versions read one another.
//!
//! The golden files were written by fastavro (`golden/make.py`), not by the code under test.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use apache_avro::{Schema, rabin::Rabin, reader::datum::GenericDatumReader, types::Value};
use bytes::Bytes;
use schemas::{
    AttemptSummary, Codec, DeadLetter, DecodeError, Delivery, Framing, Header, Origin, OutcomeKind,
    Reason, Record, RegistryIds, SchemaError, Webhook,
};
use uuid::{Uuid, uuid};

const FINGERPRINTS: [(Record, u64); 3] = [
    (Record::Webhook, 0x3aaf_c4bb_16b7_3f40),
    (Record::Delivery, 0x045c_33da_d5b6_938c),
    (Record::DeadLetter, 0x574a_dbba_a426_0a45),
];

#[test]
fn golden_bytes_decode_and_encode_again() {
    let single = Codec::new(Framing::SingleObject);
    let confluent = confluent();
    let webhook_files: [(&Codec, &[u8]); 2] = [
        (&single, include_bytes!("golden/webhook.single.bin")),
        (&confluent, include_bytes!("golden/webhook.confluent.bin")),
    ];
    for (codec, golden) in webhook_files {
        // Both framings are read whatever is written, ids need to be configured.
        assert_eq!(confluent.decode_webhook(golden), Ok(webhook()));
        assert_eq!(codec.encode_webhook(&webhook()).unwrap(), golden);
    }
    let delivery_files: [(&Codec, &[u8]); 2] = [
        (&single, include_bytes!("golden/delivery.single.bin")),
        (&confluent, include_bytes!("golden/delivery.confluent.bin")),
    ];
    for (codec, golden) in delivery_files {
        assert_eq!(confluent.decode_delivery(golden), Ok(delivery()));
        assert_eq!(codec.encode_delivery(&delivery()).unwrap(), golden);
    }
    let dead_letter_files: [(&Codec, &[u8]); 2] = [
        (&single, include_bytes!("golden/dead_letter.single.bin")),
        (
            &confluent,
            include_bytes!("golden/dead_letter.confluent.bin"),
        ),
    ];
    for (codec, golden) in dead_letter_files {
        assert_eq!(confluent.decode_dead_letter(golden), Ok(dead_letter()));
        assert_eq!(codec.encode_dead_letter(&dead_letter()).unwrap(), golden);
    }
}

/// What stands in a topic from before `destination_paused` was a reason.
#[test]
fn dead_letters_of_the_former_version_are_read() {
    let former: &[u8] = include_bytes!("golden/dead_letter.1.single.bin");
    assert_ne!(former, golden(Record::DeadLetter));
    let read = Codec::default().decode_dead_letter(former);
    assert_eq!(read, Ok(dead_letter()));
}

#[test]
fn committed_schemas_have_not_drifted() {
    for (record, fingerprint) in FINGERPRINTS {
        assert_eq!(
            record.fingerprint(),
            fingerprint,
            "{record:?} {:016x}",
            record.fingerprint()
        );
        for other in record.other_texts() {
            let other = Schema::parse_str(other).unwrap();
            let accepted = apache_avro::schema_compatibility::SchemaCompatibility::can_read(
                &other,
                &Schema::parse_str(record.text()).unwrap(),
            );
            assert!(accepted.is_ok(), "{record:?}: {accepted:?}");
        }
    }
}

#[test]
fn every_field_and_type_is_documented() {
    for record in Record::ALL {
        let mut fields = 0;
        check_docs(&json(record), record.name(), &mut fields);
        assert!(fields >= 10, "{record:?}: {fields}");
    }
}

#[test]
fn enums_have_our_names_and_a_default() {
    let letter = json(Record::DeadLetter);
    let reason = &field(&letter, "reason")["type"];
    let names: Vec<_> = Reason::ALL
        .into_iter()
        .chain([Reason::Other])
        .map(Reason::as_str)
        .collect();
    assert_eq!(reason["symbols"], serde_json::json!(names));
    assert_eq!(reason["default"], "other");
    let outcome = field(&field(&letter, "history")["type"]["items"], "outcome")["type"].clone();
    let names: Vec<_> = OUTCOMES.into_iter().map(OutcomeKind::as_str).collect();
    assert_eq!(outcome["symbols"], serde_json::json!(names));
    assert_eq!(outcome["default"], "unknown");
}

#[test]
fn nested_records_are_the_same_everywhere() {
    let (webhook, delivery, letter) = (
        json(Record::Webhook),
        json(Record::Delivery),
        json(Record::DeadLetter),
    );
    assert_eq!(field(&delivery, "webhook")["type"], webhook);
    assert_eq!(
        field(&delivery, "history")["type"],
        field(&letter, "history")["type"]
    );
    assert_eq!(
        field(&webhook, "headers")["type"],
        field(&letter, "headers")["type"]
    );
}

// --- Evolution ---

/// A former version: without the fields that came later (here: every field with a default).
#[test]
fn old_bytes_are_read_with_defaults() {
    for record in Record::ALL {
        let mut text = json(record);
        retain_fields(&mut text, |field| field.get("default").is_none());
        let text = text.to_string();
        let old = Schema::parse_str(&text).unwrap();
        let (datum, _) = resolve(record.text(), golden(record), &old);
        let bytes = framed(&old, &datum);
        let codec = Codec::default();
        assert!(matches!(
            decode(&codec, record, &bytes),
            Err(DecodeError::UnknownSchema { .. })
        ));
        let codec = codec.accept(record, None, &text).unwrap();
        match decode(&codec, record, &bytes).unwrap() {
            Any::Webhook(read) => {
                let old = Webhook {
                    generation: 0,
                    ..without_optional(webhook())
                };
                assert_eq!(read, old);
            }
            Any::Delivery(read) => {
                let old = Delivery {
                    webhook: without_optional(webhook()),
                    generation: 0,
                    fence: None,
                    deferred: 0,
                    history: Vec::new(),
                    ..delivery()
                };
                assert_eq!(read, old);
            }
            Any::DeadLetter(read) => {
                let old = DeadLetter {
                    event_type: String::new(),
                    detail: String::new(),
                    generation: 0,
                    last_status: None,
                    history: Vec::new(),
                    headers: Vec::new(),
                    ..dead_letter()
                };
                assert_eq!(read, old);
            }
        }
        // Truncated anywhere, it is broken: an end in a nullable field is not taken for a null.
        for end in 10..bytes.len() {
            let read = decode(&codec, record, &bytes[..end]);
            assert!(
                matches!(read, Err(DecodeError::Broken { .. })),
                "{record:?} {end}: {read:?}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(
            decode(&codec, record, &longer),
            Err(DecodeError::Broken { .. })
        ));
    }
}

/// The Avro crate takes the end of the input for a null in a nullable field; we do not.
#[test]
fn a_missing_nullable_end_is_broken() {
    let mut text = json(Record::Webhook);
    let fields = text["fields"].as_array_mut().unwrap();
    fields.sort_by_key(|field| field["name"] == "content_type");
    let text = text.to_string();
    let writer = Schema::parse_str(&text).unwrap();
    let (datum, _) = resolve(Record::Webhook.text(), golden(Record::Webhook), &writer);
    let bytes = framed(&writer, &datum);
    let codec = Codec::default()
        .accept(Record::Webhook, None, &text)
        .unwrap();
    assert_eq!(codec.decode_webhook(&bytes), Ok(webhook()));
    for end in 10..bytes.len() {
        let cause = "ends early".to_owned();
        let broken = DecodeError::Broken {
            record: "Webhook",
            cause,
        };
        assert_eq!(codec.decode_webhook(&bytes[..end]), Err(broken), "{end}");
    }
}

/// A coming version: another field and another enum symbol. We read it as well as we know.
#[test]
fn newer_bytes_are_read_without_what_is_unknown() {
    for record in Record::ALL {
        let newer = newer(record);
        let codec = Codec::new(Framing::Confluent(ids()))
            .accept(record, Some(99), &newer.to_string())
            .unwrap();
        let newer = Schema::parse_str(&newer.to_string()).unwrap();
        let (datum, mut value) = resolve(record.text(), golden(record), &newer);
        for bytes in [
            framed(&newer, &datum),
            [&[0, 0, 0, 0, 99], &datum[..]].concat(),
        ] {
            assert_eq!(
                decode(&codec, record, &bytes),
                decode(&confluent(), record, golden(record))
            );
        }
        if record == Record::DeadLetter {
            set(&mut value, "reason", Value::Enum(9, "melted".to_owned()));
            let read = codec
                .decode_dead_letter(&framed(&newer, &write(&newer, &value)))
                .unwrap();
            assert_eq!(
                read,
                DeadLetter {
                    reason: Reason::Other,
                    ..dead_letter()
                }
            );
        }
    }
}

/// The other way round: a reader of a coming version (a field more, with a default) reads what we write, and a reader
/// of a former one (a field less, a symbol less) does too.
#[test]
fn other_versions_read_our_bytes() {
    for record in Record::ALL {
        let newer = Schema::parse_str(&newer(record).to_string()).unwrap();
        let (_, value) = resolve(record.text(), golden(record), &newer);
        assert_eq!(get(&value, "added"), &Value::String("none yet".to_owned()));

        let mut older = json(record);
        retain_fields(&mut older, |field| {
            field["name"] != "detail" && field["name"] != "headers"
        });
        if record == Record::DeadLetter {
            let symbols = field_mut(&mut older, "reason")["type"]["symbols"]
                .as_array_mut()
                .unwrap();
            symbols.retain(|symbol| symbol != "exhausted");
        }
        let older = Schema::parse_str(&older.to_string()).unwrap();
        let (_, value) = resolve(record.text(), golden(record), &older);
        if record == Record::DeadLetter {
            assert_eq!(get(&value, "reason"), &Value::Enum(7, "other".to_owned()));
        }
    }
}

#[test]
fn an_unreadable_schema_is_not_accepted() {
    let codec = Codec::default();
    let refused = codec
        .clone()
        .accept(Record::Webhook, None, "{")
        .unwrap_err();
    assert!(matches!(refused, SchemaError::Invalid(_)), "{refused}");
    let refused = codec
        .accept(Record::Webhook, None, Record::DeadLetter.text())
        .unwrap_err();
    assert!(
        matches!(
            refused,
            SchemaError::Incompatible {
                record: "Webhook",
                ..
            }
        ),
        "{refused}"
    );
}

// --- Values ---

const OUTCOMES: [OutcomeKind; 8] = [
    OutcomeKind::Delivered,
    OutcomeKind::Rejected,
    OutcomeKind::Gone,
    OutcomeKind::Throttled,
    OutcomeKind::Failed,
    OutcomeKind::Blocked,
    OutcomeKind::Interrupted,
    OutcomeKind::Unknown,
];
const SECOND_TOKEN: Uuid = uuid!("aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee");

#[derive(Debug, PartialEq)]
enum Any {
    Webhook(Webhook),
    Delivery(Delivery),
    DeadLetter(DeadLetter),
}

fn webhook() -> Webhook {
    Webhook {
        source: "github".to_owned(),
        delivery_id: "72d3162e-cc78-11e3-81ab-4c9367dc0958".to_owned(),
        event_type: "pull_request.opened".to_owned(),
        content_type: Some("application/json".to_owned()),
        headers: vec![
            Header {
                name: "x-github-event".to_owned(),
                value: Bytes::from_static(b"pull_request"),
            },
            Header {
                name: "x-odd".to_owned(),
                value: Bytes::from_static(b"caf\xe9\x80"),
            },
        ],
        body: Bytes::from_static(b"{\"zen\":\"\xff\xfe\x00\"}"),
        received_at_ms: 1_790_000_000_123,
        generation: 1,
    }
}

fn history() -> Vec<AttemptSummary> {
    vec![
        AttemptSummary {
            attempt: 1,
            token: uuid!("11111111-2222-4333-8444-555555555555"),
            started_at_ms: 1_790_000_000_200,
            duration_ms: 1042,
            outcome: OutcomeKind::Throttled,
            status: Some(503),
            detail: "503 service unavailable".to_owned(),
        },
        AttemptSummary {
            attempt: 2,
            token: SECOND_TOKEN,
            started_at_ms: 1_790_000_030_000,
            duration_ms: 10_000,
            outcome: OutcomeKind::Failed,
            status: None,
            detail: "connect: connection refused".to_owned(),
        },
    ]
}

fn delivery() -> Delivery {
    Delivery {
        webhook: webhook(),
        destination: "billing".to_owned(),
        attempt: 3,
        generation: 1,
        fence: Some(SECOND_TOKEN),
        due_at_ms: 1_790_000_060_500,
        deferred: 2,
        history: history(),
    }
}

fn dead_letter() -> DeadLetter {
    let webhook = webhook();
    DeadLetter {
        dead_letter_id: "0123456789abcdef0123456789abcdef".to_owned(),
        source: webhook.source,
        delivery_id: webhook.delivery_id,
        destination: "billing".to_owned(),
        event_type: webhook.event_type,
        reason: Reason::Exhausted,
        detail: "12 attempts failed, the last one with 503".to_owned(),
        attempts: 12,
        generation: 1,
        last_status: Some(503),
        received_at_ms: 1_790_000_000_123,
        failed_at_ms: 1_790_259_200_000,
        history: history(),
        content_type: None,
        headers: webhook.headers,
        body: webhook.body,
        origin: Origin {
            topic: "fencepost.delay.6h".to_owned(),
            partition: 11,
            offset: 4_294_967_296,
        },
    }
}

fn without_optional(webhook: Webhook) -> Webhook {
    Webhook {
        event_type: String::new(),
        content_type: None,
        headers: Vec::new(),
        generation: 0,
        ..webhook
    }
}

// --- Helpers ---

fn ids() -> RegistryIds {
    RegistryIds {
        webhook: 7,
        delivery: 258,
        dead_letter: u32::MAX,
    }
}

fn confluent() -> Codec {
    Codec::new(Framing::Confluent(ids()))
}

fn golden(record: Record) -> &'static [u8] {
    match record {
        Record::Webhook => include_bytes!("golden/webhook.single.bin"),
        Record::Delivery => include_bytes!("golden/delivery.single.bin"),
        Record::DeadLetter => include_bytes!("golden/dead_letter.single.bin"),
    }
}

fn decode(codec: &Codec, record: Record, bytes: &[u8]) -> Result<Any, DecodeError> {
    match record {
        Record::Webhook => codec.decode_webhook(bytes).map(Any::Webhook),
        Record::Delivery => codec.decode_delivery(bytes).map(Any::Delivery),
        Record::DeadLetter => codec.decode_dead_letter(bytes).map(Any::DeadLetter),
    }
}

/// Reads a framed value of `writer` as `reader` by Avro's own rules; the datum it makes and the value.
fn resolve(writer: &str, framed: &[u8], reader: &Schema) -> (Vec<u8>, Value) {
    let writer = Schema::parse_str(writer).unwrap();
    let value = GenericDatumReader::builder(&writer)
        .reader_schema(reader)
        .build()
        .unwrap()
        .read_value(&mut &framed[10..])
        .unwrap();
    (write(reader, &value), value)
}

fn write(schema: &Schema, value: &Value) -> Vec<u8> {
    apache_avro::writer::datum::GenericDatumWriter::builder(schema)
        .build()
        .unwrap()
        .write_value_to_vec(value.clone())
        .unwrap()
}

fn framed(schema: &Schema, datum: &[u8]) -> Vec<u8> {
    // Twice: the Avro crate's first form still differs from Java's and Python's where a logical type was.
    let canonical = Schema::parse_str(&schema.canonical_form()).unwrap();
    let fingerprint = canonical.fingerprint::<Rabin>().bytes;
    [&[0xC3, 0x01], &fingerprint[..], datum].concat()
}

fn json(record: Record) -> serde_json::Value {
    serde_json::from_str(record.text()).unwrap()
}

/// A coming version of the schema: a field more (first, so that all others move) and, where there is one, a reason more.
fn newer(record: Record) -> serde_json::Value {
    let mut schema = json(record);
    let added = serde_json::json!({"name": "added", "type": "string", "default": "none yet"});
    schema["fields"].as_array_mut().unwrap().insert(0, added);
    if record == Record::DeadLetter {
        let symbols = field_mut(&mut schema, "reason")["type"]["symbols"]
            .as_array_mut()
            .unwrap();
        symbols.push("melted".into());
    }
    schema
}

fn field<'a>(schema: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    schema["fields"]
        .as_array()
        .unwrap()
        .iter()
        .find(|field| field["name"] == name)
        .unwrap()
}

fn field_mut<'a>(schema: &'a mut serde_json::Value, name: &str) -> &'a mut serde_json::Value {
    let fields = schema["fields"].as_array_mut().unwrap();
    fields
        .iter_mut()
        .find(|field| field["name"] == name)
        .unwrap()
}

/// Drops fields, in nested records too.
fn retain_fields(schema: &mut serde_json::Value, keep: impl Fn(&serde_json::Value) -> bool + Copy) {
    if let Some(fields) = schema
        .get_mut("fields")
        .and_then(|fields| fields.as_array_mut())
    {
        fields.retain(keep);
        for field in fields {
            if field["type"].is_object() {
                retain_fields(&mut field["type"], keep);
            }
        }
    }
}

fn get<'a>(record: &'a Value, name: &str) -> &'a Value {
    let Value::Record(fields) = record else {
        panic!("{record:?}")
    };
    &fields.iter().find(|(field, _)| field == name).unwrap().1
}

fn set(record: &mut Value, name: &str, value: Value) {
    let Value::Record(fields) = record else {
        panic!("{record:?}")
    };
    fields
        .iter_mut()
        .find(|(field, _)| field == name)
        .unwrap()
        .1 = value;
}

fn check_docs(schema: &serde_json::Value, path: &str, fields: &mut usize) {
    match schema {
        serde_json::Value::Array(variants) => {
            for variant in variants {
                check_docs(variant, path, fields);
            }
        }
        serde_json::Value::Object(object) => {
            if object
                .get("type")
                .is_some_and(|kind| kind == "record" || kind == "enum")
            {
                assert!(
                    object.get("doc").is_some_and(is_sentence),
                    "{path} has no doc"
                );
            }
            for field in object
                .get("fields")
                .and_then(|list| list.as_array())
                .into_iter()
                .flatten()
            {
                let path = format!("{path}.{}", field["name"].as_str().unwrap());
                assert!(
                    field.get("doc").is_some_and(is_sentence),
                    "{path} has no doc"
                );
                *fields += 1;
                check_docs(&field["type"], &path, fields);
            }
            if let Some(items) = object.get("items") {
                check_docs(items, path, fields);
            }
        }
        serde_json::Value::String(_) => {}
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => {
            panic!("{path}: {schema} is no type")
        }
    }
}

fn is_sentence(doc: &serde_json::Value) -> bool {
    doc.as_str()
        .is_some_and(|doc| doc.len() > 8 && doc.ends_with('.'))
}
