"""Make the archives of classes that let embedded brokers and Spark start in half the CPU time; called by `make setup`.

A program runs once and lists the classes that it loads; the JVM then writes them, parsed and verified, to one file (class-data sharing), which
later runs map into their memory. Made once per Java, jars and folder (`uow.jvm.archive`).

    python -m tools.class_archive

Belongs here: the runs that load the classes, and the files. Does not belong here: their use (`uow/embedded/broker.py`, `uow/spark_sink/session.py`).
"""

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.finished_units import FinishedUnits, preload
from uow.embedded import broker
from uow.embedded.broker import EmbeddedBroker
from uow.jvm import java
from uow.topics.catalogue import DestinationTopics, expected
from uow.topics.policies import DestinationPolicy, HandlingPolicy

PATIENCE_S = 60
TOPIC = "classes"
POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
NAMES = DestinationTopics("classes", "classes")
_QUIET = logging.getLogger("tools.class_archive")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def create(admin: AdminClient, topics: list[NewTopic]) -> None:
    for made in admin.create_topics(topics).values():
        made.result(PATIENCE_S)


def use(bootstrap: str) -> None:
    """Do as clients do: a topic, a transaction with offsets, a group that reads it."""
    contact: dict[str, str | float | bool] = {"bootstrap.servers": bootstrap}
    create(AdminClient(contact, logger=_QUIET), [NewTopic(TOPIC, 1, 1)])
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


def classes_of_kafka(classes: Path) -> str:
    """Write the classes of a broker to a file.

    Returns:
        The class path.
    """
    with EmbeddedBroker(jvm_flags=[f"-XX:DumpLoadedClassList={classes}"]) as running:
        use(running.bootstrap)
    return broker.java_path()


def classes_of_spark(classes: Path) -> str:
    """Write the classes of sink, questions and audit to a file.

    Returns:
        The class path.
    """
    with EmbeddedBroker() as running:
        # a process of its own: its JVM has written all when it has ended
        command = [sys.executable, "-c", "import sys; from tools.class_archive import sink; sink(*sys.argv[1:])"]
        said = subprocess.run([*command, running.bootstrap, str(classes)], check=True, capture_output=True, text=True)
    return said.stdout.strip()


def sink(bootstrap: str, classes: str) -> None:
    """Do as `uow sink`, `uow report` and `uow audit` do, and print the JVM's class path."""
    from uow.spark_sink import delta_sink, views
    from uow.spark_sink.audit import Audit
    from uow.spark_sink.kafka import Cluster
    from uow.spark_sink.session import JVM_OPTIONS, session
    from uow.spark_sink.summary import summarize
    from uow.spark_sink.tables import DeltaTables

    specs = expected(NAMES.application, NAMES.destination, POLICY, 4)
    topics = [NewTopic(spec.name, spec.partitions, 1, config=dict(spec.config)) for spec in specs]
    create(AdminClient({"bootstrap.servers": bootstrap}, logger=_QUIET), topics)
    preload(bootstrap, FinishedUnits(NAMES, 10))
    producer = Producer({"bootstrap.servers": bootstrap}, logger=_QUIET)
    for topic in (NAMES.units, NAMES.rejected, NAMES.components):
        producer.produce(topic, b"value", b"key")
    producer.flush(PATIENCE_S)
    quick = delta_sink.settings(is_short=True)
    options = f"{quick[JVM_OPTIONS]} -XX:DumpLoadedClassList={classes}"
    spark = session("classes", settings=quick | {JVM_OPTIONS: options})
    with tempfile.TemporaryDirectory() as folder:
        tables = DeltaTables(Path(folder), NAMES.destination)
        for _ in range(2):
            delta_sink.DeltaSink(spark, Cluster(bootstrap), NAMES, tables).start(once=True).awaitTermination()
            preload(bootstrap, FinishedUnits(NAMES, 1))
        views.register(spark, Path(folder))
        summarize(spark, [NAMES.destination])
        Audit(spark, Cluster(bootstrap), NAMES, POLICY, tables).run()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    print(gateway.jvm.java.lang.System.getProperty("java.class.path"), flush=True)
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(PATIENCE_S)


def make(archive: Path, classes_of: Callable[[Path], str]) -> None:
    """Make an archive; the ones made before for another Java or other jars are deleted.

    Raises:
        subprocess.CalledProcessError: this Java cannot write one, or Spark did not run.
        uow.embedded.broker.BrokerFailed: the broker did not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        classes, part = Path(folder) / "classes", Path(folder) / "archive"
        path = classes_of(classes)
        flags = [
            "-Xshare:dump",
            "-Xlog:cds*=off",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={part}",
        ]
        # in the folder itself: Spark's class path has a relative name, of which nothing may exist
        subprocess.run(
            [java.find().executable, *flags, "-cp", path], check=True, capture_output=True, text=True, cwd=folder
        )
        kind = archive.name.partition("-")[0]
        for old in archive.parent.glob(f"{kind}-*.jsa"):
            old.unlink()
        near = archive.with_suffix(".part")
        near.write_bytes(part.read_bytes())
        near.replace(archive)


def main() -> None:
    """Make those that are not there. They only save time, so a failure is told and ends nothing."""
    from uow.spark_sink import session

    for name, archive, classes_of in (
        ("Kafka", broker.class_archive(), classes_of_kafka),
        ("Spark", session.class_archive(), classes_of_spark),
    ):
        if archive.exists():
            continue
        print(f"setup: an archive of the classes of {name}, so that it starts faster (once)", flush=True)
        try:
            make(archive, classes_of)
        except (OSError, RuntimeError, KafkaException, subprocess.CalledProcessError) as error:
            told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
            print(f"setup: note: not made, {name} starts slower: {' '.join(told)}", file=sys.stderr)


if __name__ == "__main__":
    main()
