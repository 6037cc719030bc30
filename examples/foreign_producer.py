"""The same unit with nothing of ours: three headers, and the raw id as key. Any Kafka client in any language can do it.

Elsewhere than with Java's client say which partitioner: murmur2, so that all components of a unit meet on one partition.
"""

import os
import uuid

from confluent_kafka import Producer

topic = os.environ.get("DESTINATION", "megazon") + ".components"
producer = Producer(
    {"bootstrap.servers": os.environ.get("BOOTSTRAP", "localhost:9092"), "partitioner": "murmur2_random"}
)

unit_id = str(uuid.uuid4())
items = [b'{"item": "flash drive", "price": 12.50}', b'{"item": "book", "price": 18.00}']
for number, item in enumerate(items, start=1):
    headers = {"uow-id": unit_id, "uow-seq": str(number), "uow-component-id": str(uuid.uuid4())}
    if number == len(items):
        headers["uow-end"] = "true"
    producer.produce(topic, key=unit_id.encode(), value=item, headers=headers)
producer.flush()
print("sent", unit_id)
