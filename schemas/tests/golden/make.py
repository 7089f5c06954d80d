"""Writes the golden files with fastavro, so that they do not come from the code they test.

Run once for each version of a schema: `pip install fastavro && python make.py`. Prints the fingerprints.
"""
import io, json, pathlib, struct, uuid
from datetime import datetime, timedelta, timezone
import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

HERE = pathlib.Path(__file__).parent
IDS = {"webhook": 7, "delivery": 258, "dead_letter": 4294967295}


def at(ms):
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


webhook = {
    "source": "github",
    "delivery_id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    "event_type": "pull_request.opened",
    "content_type": "application/json",
    "headers": [
        {"name": "x-github-event", "value": b"pull_request"},
        {"name": "x-odd", "value": b"caf\xe9\x80"},
    ],
    "body": b"{\"zen\":\"\xff\xfe\x00\"}",
    "received_at": at(1_790_000_000_123),
    "generation": 1,
}
history = [
    {
        "attempt": 1,
        "token": uuid.UUID("11111111-2222-4333-8444-555555555555"),
        "started_at": at(1_790_000_000_200),
        "duration_ms": 1042,
        "outcome": "throttled",
        "status": 503,
        "detail": "503 service unavailable",
    },
    {
        "attempt": 2,
        "token": uuid.UUID("aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"),
        "started_at": at(1_790_000_030_000),
        "duration_ms": 10_000,
        "outcome": "failed",
        "status": None,
        "detail": "connect: connection refused",
    },
]
records = {
    "webhook": webhook,
    "delivery": {
        "webhook": webhook,
        "destination": "billing",
        "attempt": 3,
        "generation": 1,
        "fence": uuid.UUID("aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"),
        "due_at": at(1_790_000_060_500),
        "deferred": 2,
        "history": history,
    },
    "dead_letter": {
        "dead_letter_id": "0123456789abcdef0123456789abcdef",
        "source": "github",
        "delivery_id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "destination": "billing",
        "event_type": "pull_request.opened",
        "reason": "exhausted",
        "detail": "12 attempts failed, the last one with 503",
        "attempts": 12,
        "generation": 1,
        "last_status": 503,
        "received_at": at(1_790_000_000_123),
        "failed_at": at(1_790_259_200_000),
        "history": history,
        "content_type": None,
        "headers": webhook["headers"],
        "body": webhook["body"],
        "origin": {"topic": "fencepost.delay.6h", "partition": 11, "offset": 4_294_967_296},
    },
}
for name, record in records.items():
    schema = json.loads((HERE / f"../../avro/{name}.avsc").read_text())
    crc = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    print(name, crc)
    datum = io.BytesIO()
    fastavro.schemaless_writer(datum, fastavro.parse_schema(schema), record)
    single = b"\xc3\x01" + bytes.fromhex(crc) + datum.getvalue()
    confluent = b"\x00" + struct.pack(">I", IDS[name]) + datum.getvalue()
    (HERE / f"{name}.single.bin").write_bytes(single)
    (HERE / f"{name}.confluent.bin").write_bytes(confluent)
