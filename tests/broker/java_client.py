"""Java's own Kafka client, called from Python over py4j: the producer whose partitioner every other client has to match."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path, launch_gateway

from uow.jvm import jars, java

SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"


class JavaClient:
    """The classes of `kafka-clients`, in a JVM of their own."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._jvm: Any = gateway.jvm

    def partition_for(self, key: bytes, partitions: int) -> int:
        """What Java's default partitioner says."""
        return int(
            self._jvm.org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey(key, partitions)
        )

    @contextmanager
    def producer(self, bootstrap: str, **properties: str) -> Iterator[JavaProducer]:
        """A `KafkaProducer` with Java's defaults; closed, and so flushed, at the end."""
        settings = self._jvm.java.util.HashMap()
        for name in ("key.serializer", "value.serializer"):
            settings.put(name, SERIALIZER)
        settings.put("bootstrap.servers", bootstrap)
        for name, value in properties.items():
            settings.put(name, value)
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        try:
            yield JavaProducer(self._jvm, producer)
        finally:
            producer.close()


class JavaProducer:
    """A running Java producer."""

    def __init__(self, jvm: Any, producer: Any) -> None:
        self._jvm, self._producer = jvm, producer

    def send(self, topic: str, key: bytes, value: bytes, headers: Mapping[str, bytes]) -> Any:
        """Sends a record; a Java `Future<RecordMetadata>`."""
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, key, value)
        for name, content in headers.items():
            record.headers().add(name, content)
        return self._producer.send(record)


@contextmanager
def java_client() -> Iterator[JavaClient]:
    """A JVM with Kafka's client; it ends with the block, or with us."""
    port = launch_gateway(
        jarpath=find_jar_path(),
        classpath=os.pathsep.join(map(str, jars.class_path("broker"))),
        java_path=str(java.find().executable),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield JavaClient(gateway)
    finally:
        gateway.shutdown()
