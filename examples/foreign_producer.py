"""A unit sent without the `uow` library: three headers, the raw id as key, and one transaction. Any Kafka client in any language can do it.

librdkafka needs the setting for the partitioner murmur2, so that all components of a unit meet on one partition; it is the default of Java's client.
The same in Java, Go and Node: `examples/producers`.
"""

import os
import uuid

from confluent_kafka import Producer

topic = os.environ.get("DESTINATION", "megazon") + ".components"
producer = Producer(
    {
        "bootstrap.servers": os.environ.get("BOOTSTRAP", "localhost:9092"),
        "partitioner": "murmur2_random",
        "transactional.id": "example-python-producer",  # stable: a successor with this id aborts an open transaction at once
    }
)
producer.init_transactions()

unit_id = str(uuid.uuid4())
items = [b'{"item": "flash drive", "price": 12.50}', b'{"item": "book", "price": 18.00}']
producer.begin_transaction()
for number, item in enumerate(items, start=1):
    headers = {"uow-id": unit_id, "uow-seq": str(number), "uow-component-id": str(uuid.uuid4())}
    if number == len(items):
        headers["uow-end"] = "true"
    producer.produce(topic, key=unit_id.encode(), value=item, headers=headers)
producer.commit_transaction()  # waits until all of it is written
print("sent", unit_id)
