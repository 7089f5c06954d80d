"""Writes one record of raw bytes (base64 on the command line) into one partition, past our own producer."""

import argparse
import base64
import json

from confluent_kafka import Producer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partition", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--value", required=True, help="base64")
    options = parser.parse_args()

    place = {}

    def delivered(error, message):
        if error is not None:
            raise SystemExit(str(error))
        place.update(partition=message.partition(), offset=message.offset())

    producer = Producer({"bootstrap.servers": options.brokers, "acks": "all"})
    producer.produce(
        options.topic,
        key=options.key.encode(),
        value=base64.b64decode(options.value, validate=True),
        partition=options.partition,
        on_delivery=delivered,
    )
    if producer.flush(30) > 0:
        raise SystemExit("not acknowledged within 30 s")
    print(json.dumps(place))


if __name__ == "__main__":
    main()
