"""Reads the dead letters as another team would: confluent-kafka, fastavro and the committed schema, nothing of ours.

Prints one JSON object a record, bytes as base64, times as milliseconds since the Unix epoch. Ends at the end of the topic,
after --count records (then it waits for them), or with status 3 at the deadline.
"""

import argparse
import base64
import datetime
import io
import json
import sys
import time
import uuid

import fastavro
from confluent_kafka import Consumer, KafkaError, TopicPartition


def main():
    options = arguments()
    with open(options.schema, encoding="utf-8") as file:
        raw_schema = json.load(file)
    schema = fastavro.parse_schema(raw_schema)
    fingerprint = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(raw_schema), "CRC-64-AVRO")
    for message in records(options):
        writer, datum = unframe(message.value(), fingerprint)
        line = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "key": message.key(),
            "headers": {name: value.decode() for name, value in message.headers() or []},
            "framing": writer,
            "value": fastavro.schemaless_reader(datum, schema, schema),
        }
        if datum.read(1):
            raise SystemExit(f"bytes after the record at offset {message.offset()}")
        print(json.dumps(line, default=plain), flush=True)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--schema", required=True, help="dead_letter.avsc")
    parser.add_argument("--count", type=int, help="wait for so many records instead of ending at the end")
    parser.add_argument("--deadline-s", type=float, default=30)
    return parser.parse_args()


def records(options):
    """All records of the topic, from the first, without joining a group."""
    deadline = time.monotonic() + options.deadline_s
    consumer = Consumer(
        {
            "bootstrap.servers": options.brokers,
            "group.id": "read-dead-letters",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 64 << 20,
        }
    )
    topic = consumer.list_topics(options.topic, timeout=options.deadline_s).topics[options.topic]
    if topic.error is not None:
        raise SystemExit(f"{options.topic}: {topic.error}")
    consumer.assign([TopicPartition(options.topic, partition, 0) for partition in topic.partitions])
    at_end = set()
    count = 0
    while True:
        if options.count is None:
            if len(at_end) == len(topic.partitions):
                break
        elif count >= options.count:
            break
        if time.monotonic() > deadline:
            print(f"deadline passed after {count} records", file=sys.stderr)
            raise SystemExit(3)
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is None:
            count += 1
            yield message
        elif message.error().code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        else:
            raise SystemExit(str(message.error()))
    consumer.close()


def unframe(value, fingerprint):
    """Name of the framing and the datum behind it."""
    if value[:2] == b"\xc3\x01":
        # Hex of the little-endian bytes, as they stand in the frame.
        found = value[2:10].hex()
        if found not in (fingerprint, bytes.fromhex(fingerprint)[::-1].hex()):
            raise SystemExit(f"fingerprint {found} is not that of the committed schema, {fingerprint}")
        return "single-object", io.BytesIO(value[10:])
    if value[:1] == b"\x00":
        return f"confluent {int.from_bytes(value[1:5], 'big')}", io.BytesIO(value[5:])
    raise SystemExit(f"unknown frame {value[:2].hex()}")


def plain(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    main()
