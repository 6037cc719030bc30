"""More partitions for a destination (W-107): topics grow, and what belongs elsewhere under the new count moves, in one transaction.

Theory of operation. Safe steps, each of which may be the last one of a try; the next try goes on from there.

1. No worker lives: asked of the group's coordinator.
2. The two changelogs grow. They may have more partitions than the input: who gives up here starts the workers again as they were.
3. Rehearsal: we join the workers' group and own every partition of the input; the old partitions are restored as a worker would, the plans
   of the move are made (`processor.engine.repartition`), written by the worker's own sink in one transaction, and taken back. It fails where
   the move would: too large, not allowed, too slow, somebody joined.
4. The other topics grow, the input last. The count that stands beside each committed offset is the old one still, so from here on no worker
   starts.
5. The same once more, and committed: rows, ledgers, positions of all partitions. Whoever joins after us moves the generation on, and it fails.

Under path routing ids keep their partitions whatever the count is (W-215): topics grow, internal ones first, and workers may run.

Belongs here: the order of these steps. Does not belong here: what moves (`processor.engine.repartition`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from processor.engine.context import TaskContext
from processor.engine.ports import Doubt, LogReader, Plan, Tp
from processor.engine.repartition import Moved, move
from processor.engine.restore import live_rows, restore
from processor.kafka.clients import Clients
from processor.kafka.reader import KafkaLogReader, recorded_counts
from processor.kafka.settings import WorkerSettings
from processor.kafka.sink import KafkaSink
from schemas.errors import ConfigError, UowError
from topics import admin
from topics.catalogue import DestinationTopics, expected
from uow.config import Settings

TRANSACTION_MS = 300_000
"""Everything moves in one transaction; a worker's own would be too short for millions of rows."""
JOIN_S = 60.0
PATIENT = {"max.poll.interval.ms": "3600000"}
"""We read no records in the group, and a restore may take long."""


class RepartitionError(UowError):
    """Nothing was moved; see what it says, and run the command again."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was done, or would be.

    Attributes:
        before: Partitions under which the groups were assembled.
        after: Partitions from now on.
        grown: Topics that got more partitions.
        moved: What moved.
    """

    before: int
    after: int
    grown: tuple[str, ...]
    moved: Moved


def repartition(settings: Settings, destination: str, partitions: int | None, *, dry_run: bool) -> Report:
    """Gives a destination more partitions.

    Args:
        settings: Configuration.
        destination: Its name.
        partitions: The new count; None: that of `D.components`, where somebody has given it more already.
        dry_run: Whether to change nothing.

    Raises:
        ConfigError: No such destination, or a count that cannot be.
        RepartitionError: A worker lives, or joined meanwhile.
        StateCorruptedError: The state cannot be restored.
    """
    policy = settings.policy(destination)
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    specs = [spec for spec in expected(settings.application_id, destination, policy) if spec.counted]
    names = [spec.name for spec in specs]
    counts = admin.partition_counts(client)
    if any(name not in counts for name in names):
        raise ConfigError("topics", destination, "some are missing: `uow topics create` makes them")
    logs = [spec.name for spec in specs if spec.may_exceed]
    most = max(counts[name] for name in names if name not in logs)
    after = most if partitions is None else partitions
    if after < most:
        raise ConfigError("partitions", after, f"at least {most}: partitions are never taken away")
    growing = [name for name in names if counts[name] < after]
    growing = [name for name in growing if name in logs] + [name for name in reversed(growing) if name not in logs]
    if not policy.is_bound_to_count:
        if not dry_run:
            admin.grow(client, growing, after)
        return Report(counts[names[0]], after, tuple(growing), Moved())
    worker = settings.worker("repartition")
    worker = replace(worker, transaction_timeout_ms=TRANSACTION_MS, kafka={**worker.kafka, **PATIENT})
    clients = Clients(worker)
    _refuse_while_workers_live(client, worker.application_id)
    recorded = next(iter(recorded_counts(clients, names[0], counts[names[0]])), None)
    before = counts[names[0]] if recorded is None else recorded
    topics = DestinationTopics(settings.application_id, destination)
    context = TaskContext(destination, topics, policy, before, b"", b"")
    if dry_run:
        with closing(KafkaLogReader(clients)) as reader:
            return Report(before, after, tuple(growing), _plans(reader, context, after, {})[1])
    if recorded in (None, after):
        admin.grow(client, growing, after)
        return Report(before, after, tuple(growing), Moved())
    admin.grow(client, [name for name in growing if name in logs], after)
    there = counts[topics.components]
    failed = "nothing has moved, and workers may be started as before"
    with _ready_to_write(clients, worker, topics.components, there, failed) as (reader, sink, token):
        sink.rehearse(_plans(reader, context, after, {})[0], token, before)
    admin.grow(client, [name for name in growing if name not in logs], after)
    failed = "not known to be written, run it again, it finds out"
    with _ready_to_write(clients, worker, topics.components, after, failed) as (reader, sink, token):
        starts = reader.bounds([Tp(topics.components, number) for number in range(before, after)])
        plans, moved = _plans(reader, context, after, {tp.partition: start for tp, (start, _) in starts.items()})
        sink.write(plans, token)
    return Report(before, after, tuple(growing), moved)


def _refuse_while_workers_live(client: AdminClient, group: str) -> None:
    try:
        members = client.describe_consumer_groups([group], request_timeout=admin.TIMEOUT_S)[group].result().members
    except ck.KafkaException as failure:
        if failure.args[0].code() == ck.KafkaError.GROUP_ID_NOT_FOUND:
            return
        raise
    if members:
        told = "one that was killed counts until its session is over"
        raise RepartitionError(f"{len(members)} workers of {group} live: stop them first; {told}")


@contextmanager
def _alone_in_the_group(clients: Clients, topic: str, partitions: int) -> Iterator[Any]:
    """The group's metadata, once we own every partition of the input.

    Raises:
        RepartitionError: Somebody else owns some.
    """
    consumer, owned = clients.group_consumer(), 0

    def on_assign(_: ck.Consumer, given: list[ck.TopicPartition]) -> None:
        nonlocal owned
        owned += len(given)
        consumer.incremental_assign([])  # nothing is read

    def on_revoke(_: ck.Consumer, taken: list[ck.TopicPartition]) -> None:
        nonlocal owned
        owned -= len(taken)
        consumer.incremental_unassign([])

    try:
        consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
        until = time.monotonic() + JOIN_S
        while owned < partitions:
            consumer.poll(0.1)
            if time.monotonic() > until:
                raise RepartitionError(
                    f"only {owned} of {partitions} partitions are ours: a worker has joined; stop it"
                )
        yield consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _plans(reader: LogReader, context: TaskContext, after: int, starts: Mapping[int, int]) -> tuple[list[Plan], Moved]:
    topics = context.topics
    inputs = [Tp(topics.components, number) for number in range(context.partitions)]
    tasks = {tp.partition: task for tp, task in restore(reader, {topics.components: context}, inputs).items()}
    gone = [task.blocked for task in tasks.values() if task.blocked is not None]
    if gone:
        raise RepartitionError("; ".join(gone))
    logs = [Tp(topics.groups_changelog, number) for number in tasks]
    rows = {log.partition: found for log, found in live_rows(reader, logs).items()}
    return move(replace(context, partitions=after), tasks, rows, starts)


@contextmanager
def _ready_to_write(
    clients: Clients, worker: WorkerSettings, topic: str, partitions: int, failed: str
) -> Iterator[tuple[KafkaLogReader, KafkaSink, Any]]:
    """Who reads, the worker's own sink and the group's metadata, once we own every partition of the input.

    Raises:
        RepartitionError: Somebody else owns some; or `failed`, and why, in the place of a doubt about what is written inside.
    """
    with (
        _alone_in_the_group(clients, topic, partitions) as token,
        closing(KafkaLogReader(clients)) as reader,  # one that knows of the partitions there are now
        closing(KafkaSink(clients, worker)) as sink,
    ):
        try:
            sink.open()
            yield reader, sink, token
        except Doubt as doubt:
            with suppress(ck.KafkaException):
                sink.replace()  # what is open would hold up whoever starts next, until its time is over
            raise RepartitionError(f"{failed}: {doubt}") from doubt
