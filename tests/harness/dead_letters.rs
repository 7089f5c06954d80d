//! The dead-letter topic through the eyes of another team: Python, confluent-kafka, fastavro and the committed schema.

use crate::{
    sender::sha256,
    stack::{Stack, cache, root},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::Value;
use std::{path::PathBuf, process::Command};

/// A dead letter as the foreign client sees it.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub source: String,
    pub delivery_id: String,
    pub destination: String,
    pub reason: String,
    /// Exact bytes.
    pub body: Vec<u8>,
    /// Everything that the script prints, see `tests/foreign/read_dead_letters.py`.
    pub record: Value,
}

/// The part of a record that the oracle needs.
#[derive(Deserialize)]
struct Known {
    source: String,
    delivery_id: String,
    destination: String,
    reason: String,
    body: String,
}

/// All dead letters under `topic_prefix`; with `count`, waits until there are so many.
///
/// # Panics
/// When the script fails, with what it says.
pub async fn read(stack: &Stack, topic_prefix: &str, count: Option<usize>) -> Vec<DeadLetter> {
    let mut arguments = vec![
        "--topic".to_owned(),
        format!("{topic_prefix}.dead-letters"),
        "--schema".to_owned(),
        root()
            .join("schemas/avro/dead_letter.avsc")
            .display()
            .to_string(),
        "--deadline-s=60".to_owned(),
    ];
    arguments.extend(count.map(|count| format!("--count={count}")));
    let output = python(stack, "read_dead_letters.py", arguments).await;
    output.lines().map(parse).collect()
}

/// Writes raw bytes into a topic, past our own producer.
///
/// # Panics
/// When the script fails, with what it says.
pub async fn write_raw(stack: &Stack, topic: &str, partition: u32, key: &str, value: &[u8]) {
    let arguments = vec![
        format!("--topic={topic}"),
        format!("--partition={partition}"),
        format!("--key={key}"),
        format!("--value={}", BASE64_STANDARD.encode(value)),
    ];
    python(stack, "write_record.py", arguments).await;
}

// === impl DeadLetter ===

impl DeadLetter {
    /// SHA-256 of the body, hex.
    pub fn body_sha256(&self) -> String {
        sha256(&self.body)
    }

    /// A field of the Avro record.
    pub fn field(&self, name: &str) -> &Value {
        &self.record["value"][name]
    }
}

fn parse(line: &str) -> DeadLetter {
    let record: Value = serde_json::from_str(line).expect("the script prints JSON");
    let known = Known::deserialize(&record["value"]).expect("a dead letter has its fields");
    DeadLetter {
        source: known.source,
        delivery_id: known.delivery_id,
        destination: known.destination,
        reason: known.reason,
        body: BASE64_STANDARD
            .decode(known.body)
            .expect("the script prints base64"),
        record,
    }
}

/// Runs a script of `tests/foreign` in the environment that `tests/setup data` has made.
async fn python(stack: &Stack, script: &str, arguments: Vec<String>) -> String {
    let interpreter: PathBuf = cache().join("python/bin/python");
    assert!(
        interpreter.exists(),
        "no {}: run tests/setup data",
        interpreter.display()
    );
    let mut command = Command::new(interpreter);
    command
        .arg(root().join("tests/foreign").join(script))
        .arg("--brokers")
        .arg(&stack.kafka);
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("no panic")
        .expect("Python runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    String::from_utf8(output.stdout).expect("the script prints UTF-8")
}
