"""A destination on the test broker, its worker played by the engine's own tasks, one transaction a step.

Components go in with append times given by the test (the topic is set to `CreateTime`), so that nothing here waits for a clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.fake_record import FakeRecord
from tests.processes import Patience, wait_for
from tests.spark.delta_rows import nested_components, table_rows
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Plan, Tp
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.row_table import RowTable
from uow.schemas.error_classes import InternalError
from uow.schemas.framing import single_object_header
from uow.spark_sink.audit import Audit, AuditReport
from uow.spark_sink.delta_sink import DeltaSink
from uow.spark_sink.destination_rules import DestinationRules
from uow.spark_sink.kafka import Cluster
from uow.spark_sink.tables import DeltaTables, Table, with_nested
from uow.topics.catalogue import DestinationTopics, expected
from uow.topics.command_keys import CommandSigner
from uow.topics.commands import Command, command_headers, command_value
from uow.topics.partitioner import partition_for
from uow.topics.path_map import NONCE_BYTES, PathMap, claim_key, claim_value
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import ResolvedRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PARTITIONS = 2
DEADLINE_S = 30.0
STARTED_MS = int(time.time() * 1000) - 3_600_000
"""An hour ago: append times of the tests count from here."""

ASIDE = b"the code fails at it"
"""A component of this value is set aside by the worker."""

Headers = list[tuple[str, str | bytes | None]]

QUIET = logging.getLogger("tests.spark.librdkafka")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class Stage:
    """One destination, its topics, its worker and its tables."""

    def __init__(
        self,
        spark: SparkSession,
        servers: str,
        tables: Path,
        name: str,
        policy: DestinationPolicy,
        rows: Sequence[ResolvedRow] = (),
        inputs: Sequence[str] = (),
    ) -> None:
        self.spark, self.servers, self.policy = spark, servers, policy
        targets = tuple(sorted({topic for row in rows for topic in row.targets}))
        named = {row.name: row for row in rows}
        self.rules = DestinationRules(targets, frozenset(["of-another"]), named, tuple(inputs), (name,))
        self.names = DestinationTopics("tests", name)
        self.tables = DeltaTables(tables, name)
        self.cluster = Cluster(servers)
        self._admin = AdminClient({"bootstrap.servers": servers}, logger=QUIET)
        self._create_topics()
        self._producer = self._transactional("sender")
        self._worker = self._transactional("worker")
        own = {
            "bootstrap.servers": servers,
            "group.id": "tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer({**own, "auto.offset.reset": "earliest"}, logger=QUIET)
        self._consumer.assign([TopicPartition(self.names.components, p, 0) for p in range(PARTITIONS)])
        header = single_object_header("Unit")
        self._paths = PathMap(PARTITIONS) if policy.has_paths else None
        outcome = single_object_header("Outcome")
        rule_table = RowTable(self.rules.rows, name, policy)
        self._context = TaskContext(
            name, self.names, policy, PARTITIONS, header, outcome, paths=self._paths, rules=rule_table
        )
        self.tasks = {p: PartitionTask(Tp(self.names.components, p), self._context) for p in range(PARTITIONS)}
        self._sent = dict.fromkeys(range(PARTITIONS), 0)
        self._at = STARTED_MS
        self._is_nested = True

    def _transactional(self, role: str) -> Producer:
        own = {
            "bootstrap.servers": self.servers,
            "transactional.id": f"{self.names.destination}-{role}",
            "retry.backoff.ms": 5,
        }
        producer = Producer(own, logger=QUIET)
        producer.init_transactions(DEADLINE_S)
        return producer

    def _create_topics(self) -> None:
        specs = expected("tests", self.names.destination, self.policy, PARTITIONS)
        topics = []
        for spec in specs:
            config = dict(spec.config)
            if spec.name in (self.names.components, self.names.commands):
                config["message.timestamp.type"] = "CreateTime"
            topics.append(NewTopic(spec.name, spec.partitions, 1, config=config))
        topics += [NewTopic(topic, PARTITIONS, 1) for topic in (*self.rules.targets, *self.rules.inputs)]
        for future in self._admin.create_topics(topics).values():
            future.result(DEADLINE_S)

    def close(self) -> None:
        """Closes the clients."""
        self._consumer.close()

    # -- what producers do ------------------------------------------------------------------------------------------

    def send(
        self,
        records: Iterable[tuple[bytes | None, bytes | None, Headers]],
        *,
        at: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Sends records to `D.components` in one transaction, one millisecond apart or all at `at` after the start."""
        self._producer.begin_transaction()
        for key, value, headers in records:
            self._at = self._at + 1 if at is None else STARTED_MS + at
            target = partition_for(key or b"", PARTITIONS) if partition is None else partition
            self._producer.produce(self.names.components, value, key, target, timestamp=self._at, headers=headers)
            self._sent[target] += 1
        self._commit(self._producer, {(self.names.components, p) for p in range(PARTITIONS)})

    def feed(self, topic: str, records: int) -> list[str]:
        """So many records of an input, which its routers have read. Returns their places."""
        places: list[str] = []

        def on_delivery(error: object, message: Any) -> None:
            places.append(f"{topic}/0/{message.offset()}")

        self._producer.begin_transaction()
        for _ in range(records):
            self._producer.produce(topic, b"an event", None, 0, on_delivery=on_delivery)
        self._producer.flush(DEADLINE_S)
        self._commit(self._producer, {(topic, 0)})
        routers = Consumer({"bootstrap.servers": self.servers, "group.id": "tests-router"}, logger=QUIET)
        reached = TopicPartition(topic, 0, 1 + int(places[-1].rpartition("/")[2]))
        routers.commit(offsets=[reached], asynchronous=False)
        routers.close()
        return places

    def lose(self, topic: str) -> None:
        """Retention takes every record of a topic."""
        ends = self._ends({(topic, p) for p in range(PARTITIONS)}, IsolationLevel.READ_UNCOMMITTED)
        for future in self._admin.delete_records([TopicPartition(*place, end) for place, end in ends.items()]).values():
            future.result(DEADLINE_S)

    def abort(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Headers]]) -> None:
        """Sends records to partition 0 of a topic and aborts: nobody may ever see them."""
        self._producer.begin_transaction()
        for key, value, headers in records:
            self._producer.produce(topic, value, key, 0, headers=headers)
        self._producer.flush(DEADLINE_S)
        self._producer.abort_transaction(DEADLINE_S)

    def put(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int = 0) -> None:
        """Writes one record to an output topic."""
        self.put_all(topic, [(key, value, headers)], partition)

    def put_all(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Headers]], partition: int = 0
    ) -> None:
        """Writes records to an output topic, in one transaction."""
        self._producer.begin_transaction()
        for key, value, headers in records:
            self._producer.produce(topic, value, key, partition, headers=headers)
        self._commit(self._producer, {(topic, partition)})

    def _commit(self, producer: Producer, places: set[tuple[str, int]]) -> None:
        """Commits, and returns when everybody reads what was written.

        The broker answers as soon as it has decided, and writes the markers behind that: until then no reader of committed records sees the
        transaction, and the end that it is told lies before it.
        """
        producer.commit_transaction(DEADLINE_S)

        def are_readable() -> bool:
            committed, written = (self._ends(places, level) for level in IsolationLevel)
            return committed == written

        wait_for(are_readable, DEADLINE_S, f"markers of a transaction in {sorted(places)}")

    def _ends(self, places: set[tuple[str, int]], isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        """Ends of logs. A topic that was made a moment ago may have no leader that knows of it: it is asked for again."""
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
        ends: dict[tuple[str, int], int] = {}

        def are_told() -> bool:
            answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=DEADLINE_S)
            with suppress(KafkaException):
                ends.update({(each.topic, each.partition): found.result().offset for each, found in answers.items()})
            return len(ends) == len(places)

        wait_for(are_told, DEADLINE_S, f"ends of {sorted(places)}")
        return ends

    def place(self, id: str) -> None:
        """Somebody has claimed another partition for an id than `send` takes."""
        assert self._paths is not None
        group_id = id.encode()
        elsewhere = 1 - partition_for(group_id, PARTITIONS)
        self._paths.read(claim_key(group_id, bytes(NONCE_BYTES)), claim_value(elsewhere), STARTED_MS)

    # -- what the worker does ---------------------------------------------------------------------------------------

    def work(self) -> None:
        """Everything that was sent becomes outputs, in one transaction, and the offsets are committed."""
        records: dict[int, list[Any]] = {p: [] for p in range(PARTITIONS)}
        patience = Patience(DEADLINE_S)
        while sum(map(len, records.values())) < sum(self._sent.values()):
            assert not patience.is_over, "not all that was sent could be read"
            for message in self._consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                partition = message.partition()
                assert partition is not None
                records[partition].append(message)
        self._sent = dict.fromkeys(self._sent, 0)
        aside = {p: [each for each in found if each.value() == ASIDE] for p, found in records.items()}
        if not any(aside.values()):
            self._write([self.tasks[p].process(found) for p, found in records.items() if found])
            return
        for p, found in records.items():
            for each in found:
                is_aside, why = each in aside[p], InternalError.of(KeyError("no such thing"))
                task = self.tasks[p]
                self._write([task.set_aside(each, why) if is_aside else task.process([each])])

    def command(self, command: Command, *, is_kept: bool = True, signer: CommandSigner | None = None) -> None:
        """A command is decided, after everything that was worked on; its record is lost to retention unless `is_kept`."""
        partition = partition_for(command.group_id, PARTITIONS)
        task = self.tasks[partition]
        where, headers, value = Tp(self.names.commands, partition), command_headers(command), command_value(command)
        if signer is not None:
            headers = signer.signed(self.names.destination, command.group_id, value, headers, self._at)
        record = FakeRecord(task.command_position, headers, value, command.group_id, self._at, where)
        if is_kept:
            self._producer.begin_transaction()
            self._producer.produce(where.topic, value, command.group_id, partition, timestamp=self._at, headers=headers)
            self._commit(self._producer, {where})
        self._write([task.process([], [record])])

    def tick(self, now_ms: int | None = None) -> None:
        """The partitions are read to their ends: the wall clock, or what the test says it is, may close groups."""
        now = int(time.time() * 1000) if now_ms is None else now_ms
        self._write([plan for task in self.tasks.values() if (plan := task.tick(now)) is not None])

    def _write(self, plans: list[Plan]) -> None:
        if not plans:
            return
        places: set[tuple[str, int]] = set()
        self._worker.begin_transaction()
        for plan in plans:
            for output in plan.outputs:
                partition = output.partition if output.partition >= 0 else partition_for(output.key or b"", PARTITIONS)
                is_sent_on = output.topic == self.names.components
                own = {"headers": [*output.headers], "timestamp": self._at if is_sent_on else 0}
                self._worker.produce(output.topic, output.value, output.key, partition, **own)
                self._sent[partition] += is_sent_on
                places.add((output.topic, partition))
            self._worker.produce(plan.ledger_topic, plan.ledger, None, plan.tp.partition)
        self._commit(self._worker, places)
        self._consumer.commit(
            offsets=[TopicPartition(*plan.tp, plan.next_offset) for plan in plans], asynchronous=False
        )

    def read(self, topic: str) -> list[Any]:
        """Committed records of partition 0 and 1 of a topic, so far."""
        own = {
            "bootstrap.servers": self.servers,
            "group.id": "looking",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        consumer = Consumer(own, logger=QUIET)
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        found, ends = [], 0
        patience = Patience(DEADLINE_S)
        while ends < PARTITIONS:
            assert not patience.is_over, f"{topic} has no end"
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is None:
                found.append(message)
            else:
                ends += 1
        consumer.close()
        return found

    # -- what Spark does --------------------------------------------------------------------------------------------

    def sinking(self) -> DeltaSink:
        """The sink of this destination."""
        policy = self.policy
        return DeltaSink(
            self.spark, self.cluster, self.names, self.tables, policy.routes, policy.forms_units, self.rules
        )

    def sink(self) -> None:
        """`uow sink --once`."""
        self.sinking().start(once=True).awaitTermination()

    def rows(self, table: Table) -> list[Any]:
        """A table, in the order of its records."""
        order = ("unit_partition", "unit_offset", "position") if table is Table.COMPONENTS else ("partition", "offset")
        found = table_rows(Path(self.tables.path(table)))
        if table is Table.COMPONENTS:
            found += nested_components(table_rows(Path(self.tables.path(Table.UNITS))))
        return sorted(found, key=lambda row: [(row[name] is not None, row[name] or 0) for name in order])

    def _present(self, table: Table) -> DataFrame:
        """As `DeltaTables.read`, by fewer jobs."""
        rows = self.tables.present(self.spark, table).rows
        if table is not Table.COMPONENTS:
            return rows
        return with_nested(self.spark, rows, self.tables.present(self.spark, Table.UNITS).rows)

    def audit(self, *, incremental: bool = False, accept: bool = False) -> AuditReport:
        """`uow audit`."""
        audit = Audit(self.spark, self.cluster, self.names, self.policy, self.tables, self.rules)
        return audit.run(incremental=incremental, accept=accept)

    def tamper(self, table: Table, change: Callable[[list[dict[str, Any]]], None]) -> None:
        """Changes a table behind the sink's back, which is done then. Components are rows of their own afterwards."""
        if table in (Table.UNITS, Table.COMPONENTS) and self._is_nested:
            self._put_components_into_their_table()
            self._is_nested = False
        found = self._present(table)
        rows = [row.asDict(recursive=True) for row in found.collect()]
        change(rows)
        self._overwrite(table, rows, found.schema)

    def _put_components_into_their_table(self) -> None:
        parts = self._present(Table.COMPONENTS)
        self._overwrite(Table.COMPONENTS, parts.collect(), parts.schema)
        self.spark.sql(f"UPDATE {self.tables.sql_name(Table.UNITS)} SET components = NULL")  # noqa: S608

    def _overwrite(self, table: Table, rows: list[Any], schema: StructType) -> None:
        made = self.spark.createDataFrame(rows, schema)
        made.coalesce(1).write.format("delta").mode("overwrite").save(self.tables.path(table))


def c(
    id: str, seq: int, *, end: bool = False, value: bytes | None = b"v", **headers: str
) -> tuple[bytes | None, bytes | None, Headers]:
    """A component, ready to send; more headers by name, `_` for `-`."""
    marks: Headers = [("uow-id", id.encode()), ("uow-seq", b"%d" % seq)]
    if end:
        marks.append(("uow-end", b"true"))
    return id.encode(), value, marks + [(name.replace("_", "-"), text.encode()) for name, text in headers.items()]


def plain(key: str, value: bytes | None = b"news") -> tuple[bytes | None, bytes | None, Headers]:
    """A record that is no component."""
    return key.encode(), value, [("note", b"\xff\x00"), ("note", None)]
