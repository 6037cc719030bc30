"""Units read without the `uow` library: with a Kafka client, an Avro library, and the published definition.

    python examples/foreign_reader.py schemas/definitions/unit.avsc      # needs the packages confluent-kafka and avro

Prints COUNT units (default 10), a line of JSON each, and stops. It must read `read_committed`, so that it sees no record of an aborted transaction.
"""

import io
import json
import os
import sys
from pathlib import Path

import avro.io
import avro.schema
from confluent_kafka import Consumer

SINGLE_OBJECT = b"\xc3\x01"

definition = avro.schema.parse(Path(sys.argv[1]).read_text())
consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("BOOTSTRAP", "localhost:9092"),
        "group.id": "foreign-reader",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
)
consumer.subscribe([os.environ.get("DESTINATION", "megazon") + ".units"])
wanted = int(os.environ.get("COUNT", "10"))
while wanted:
    record = consumer.poll(1.0)
    if record is None or record.error() is not None:
        continue
    value = record.value()
    if dict(record.headers() or []).get("uow-kind") != b"unit" or not value.startswith(SINGLE_OBJECT):
        continue  # plain traffic passes through the same topic
    unit = avro.io.DatumReader(definition).read(avro.io.BinaryDecoder(io.BytesIO(value[10:])))
    components = [[each["seq"], each["value"].decode()] for each in unit["components"]]
    print(json.dumps({"id": unit["id"], "outcome": unit["outcome"], "components": components}), flush=True)
    wanted -= 1
consumer.close()
