"""A command in the workers' place: nobody else is in their group, and it writes with their sink (W-107).

Belongs here: being alone, and staying so until a commit that fails otherwise. Does not belong here: the plans that are written
(`uow.ops.repartition`, `uow.ops.migration`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from uow.config.loading import Settings
from uow.processor.engine.ports import Doubt
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.error_classes import UowError
from uow.topics import admin

TRANSACTION_MS = 300_000
"""Time-out of the one transaction that moves everything; a worker's own would be too short for millions of rows."""
JOIN_S = 60.0
PATIENT = {"max.poll.interval.ms": "3600000"}
"""Longest time between polls: no records are read in the group, and a restore may take long."""


class MoveError(UowError):
    """Groups were not moved, or not all of it is done. Follow the message, and run the command again."""


def patient_worker(settings: Settings, name: str) -> WorkerSettings:
    """The settings of a worker of this name that has time."""
    worker = settings.worker(name)
    return replace(worker, transaction_timeout_ms=TRANSACTION_MS, kafka={**worker.kafka, **PATIENT})


def live_members(client: AdminClient, group: str) -> int:
    """The number of members of a consumer group; 0 if there is no such group."""
    try:
        answer = admin.described_group(client, group)
    except ck.KafkaException as failure:
        if failure.args[0].code() == ck.KafkaError.GROUP_ID_NOT_FOUND:
            return 0
        raise
    return len(answer.members)


def refuse_while_workers_live(client: AdminClient, group: str) -> None:
    """Returns if the group has no members.

    Raises:
        MoveError: It has.
    """
    if count := live_members(client, group):
        note = "a killed worker counts until its session times out"
        raise MoveError(f"{count} workers of {group} are running: stop them first; {note}")


@contextmanager
def alone_in_the_group(clients: Clients, topic: str, partitions: int) -> Iterator[ck.Consumer]:
    """The member of the workers' group that owns every partition of the input. A worker that joins makes its commits fail.

    Raises:
        MoveError: Another member owns some of them.
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
                raise MoveError(
                    f"only {owned} of {partitions} partitions were assigned here: a worker has joined; stop it"
                )
        yield consumer
    finally:
        consumer.close()


@contextmanager
def ready_to_write(
    clients: Clients, worker: WorkerSettings, topic: str, partitions: int, failed: str
) -> Iterator[tuple[KafkaLogReader, KafkaSink, Any]]:
    """A log reader, a worker's sink and the group's metadata, once this process owns every partition of the input.

    Raises:
        MoveError: Another member owns some of them; or, instead of a doubt about the transaction inside the block, `failed` and the reason.
    """
    with (
        alone_in_the_group(clients, topic, partitions) as member,
        closing(KafkaLogReader(clients)) as reader,  # a new reader, which knows the present partitions
        closing(KafkaSink(clients, worker)) as sink,
    ):
        try:
            sink.open()
            yield reader, sink, member.consumer_group_metadata()
        except Doubt as doubt:
            with suppress(ck.KafkaException):
                sink.replace()  # an open transaction would block the next start until it times out
            raise MoveError(f"{failed}: {doubt}") from doubt
