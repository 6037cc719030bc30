"""Make the archive of Kafka's classes that lets embedded brokers start in half the CPU time; called by `make setup`.

A broker runs once and lists the classes that it loads; the JVM then writes them, parsed and verified, to one file (class-data sharing), which
later brokers map into their memory. Made once per Java, version of the jars and folder; `uow.embedded.broker.class_archive` is its name.

    python -m tools.class_archive

Belongs here: the run that loads the classes, and the file. Does not belong here: its use (`uow/embedded/broker.py`).
"""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from uow.embedded.broker import EmbeddedBroker, class_archive, java_path
from uow.jvm import java

PATIENCE_S = 60
TOPIC = "classes"
_QUIET = logging.getLogger("tools.class_archive")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def use(bootstrap: str) -> None:
    """Do as clients do: a topic, a transaction with offsets, a group that reads it."""
    contact: dict[str, str | float | bool] = {"bootstrap.servers": bootstrap}
    admin = AdminClient(contact, logger=_QUIET)
    for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        made.result(PATIENCE_S)
    producer = Producer({**contact, "transactional.id": TOPIC}, logger=_QUIET)
    producer.init_transactions(PATIENCE_S)
    reading: dict[str, str | float | bool] = {
        "group.id": TOPIC,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**contact, **reading}, logger=_QUIET)
    consumer.subscribe([TOPIC])
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(TOPIC, b"value", b"key")
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), group, PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
        consumer.poll(PATIENCE_S)
    consumer.close()


def make() -> Path:
    """Make the archive; the ones made before for another Java or other jars are deleted.

    Raises:
        subprocess.CalledProcessError: this Java cannot write one.
        uow.embedded.broker.BrokerFailed: the broker did not start.
    """
    archive = class_archive()
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder) / "classes"
        with EmbeddedBroker(jvm_flags=[f"-XX:DumpLoadedClassList={classes}"]) as broker:
            use(broker.bootstrap)
        part = Path(folder) / "archive"
        flags = [
            "-Xshare:dump",
            "-Xlog:cds*=off",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={part}",
        ]
        subprocess.run([java.find().executable, *flags, "-cp", java_path()], check=True, capture_output=True)
        for old in archive.parent.glob("classes-*.jsa"):
            old.unlink()
        near = archive.with_suffix(".part")
        near.write_bytes(part.read_bytes())
        near.replace(archive)
    return archive


def main() -> None:
    """Make it if it is not there. It only saves time, so a failure is told and ends nothing."""
    if class_archive().exists():
        return
    print("setup: an archive of Kafka's classes, so that brokers start faster (some seconds, once)", flush=True)
    try:
        make()
    except (OSError, RuntimeError, KafkaException, subprocess.CalledProcessError) as error:
        print(f"setup: note: not made, brokers start slower: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
