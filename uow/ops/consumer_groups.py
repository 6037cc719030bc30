"""Committed offsets of consumer groups, read on one cluster and written on another.

Belongs here: which groups read a topic, and their offsets. Does not belong here: where an offset lies in a copy (`uow.ops.mirror`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final, NamedTuple

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._group import ConsumerGroupListing
from tenacity import retry, retry_if_exception, retry_if_result, stop_after_delay, wait_fixed

from uow.client.deliveries import Steps, read_steps, write_steps
from uow.ops.mirror import Place
from uow.processor.engine.ports import Committed, Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.error_table import is_passing
from uow.processor.kafka.log_reader import REQUEST_S
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.topics.admin import TIMEOUT_S

Offsets = Mapping[Tp, Committed]
_ANY = 1 << 62
SETTLED_S: Final = 70.0
"""Longest wait for the transactions over a group's offsets: Kafka ends one that was left open after 60 s, unless its producer asked for another time."""


def reading_groups(
    client: AdminClient, topics: Collection[str], named: Sequence[str], not_these: Collection[str]
) -> dict[str, Offsets]:
    """The consumer groups that have committed offsets on some of these topics, with these offsets.

    Args:
        client: On the cluster.
        topics: Names of topics.
        named: Groups to ask about; empty: all of the cluster.
        not_these: Groups that are left out.

    Raises:
        KafkaException: A broker does not answer, a group may not be described, or a transaction over its offsets does not end.
    """
    found: dict[str, Offsets] = {}
    listed = ListedGroups() if named else listed_groups(client)
    if listed.failures:
        raise listed.failures[0]
    groups = named or [each.group_id for each in listed.groups]
    for group in sorted(set(groups) - set(not_these)):
        offsets = {
            Tp(row.topic, row.partition): Committed(row.offset, row.metadata or "")
            for row in committed_rows(client, group, settled=True)
            if row.topic in topics and row.offset >= 0
        }
        if offsets:
            found[group] = offsets
    return found


def _is_answered_later(failure: BaseException) -> bool:
    """True if the broker has answered, and will answer otherwise: a coordinator that moves, a transaction of a member that has just gone."""
    return isinstance(failure, ck.KafkaException) and failure.args[0].code() > 0 and is_passing(failure.args[0])


class ListedGroups(NamedTuple):
    """Consumer groups of a cluster.

    Attributes:
        groups: Those that are known.
        failures: Of brokers that did not say theirs: there may be more groups.
    """

    groups: Sequence[ConsumerGroupListing] = ()
    failures: Sequence[ck.KafkaException] = ()


def listed_groups(client: AdminClient) -> ListedGroups:
    """All consumer groups. Brokers that do not know theirs yet, since they load them, are asked again.

    Raises:
        KafkaException: No broker answers.
    """

    @retry(
        retry=retry_if_result(lambda listed: any(map(_is_answered_later, listed.failures))),
        stop=stop_after_delay(TIMEOUT_S),
        wait=wait_fixed(0.1),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )
    def ask() -> ListedGroups:
        answer = client.list_consumer_groups(request_timeout=TIMEOUT_S).result()
        return ListedGroups(answer.valid, answer.errors)

    return ask()


def committed_rows(client: AdminClient, group: str, *, settled: bool = False) -> Sequence[ck.TopicPartition]:
    """All that a group has committed.

    Args:
        client: On the cluster.
        group: The group's name.
        settled: True to wait for the ends of transactions over its offsets.

    Raises:
        KafkaException: There is no such group, it may not be described, or there was no answer in time.
    """
    asked = [ck.ConsumerGroupTopicPartitions(group)]

    @retry(
        retry=retry_if_exception(_is_answered_later),
        stop=stop_after_delay(SETTLED_S if settled else TIMEOUT_S),
        wait=wait_fixed(0.1),
        reraise=True,
    )
    def ask() -> Sequence[ck.TopicPartition]:
        answer = client.list_consumer_group_offsets(asked, require_stable=settled, request_timeout=TIMEOUT_S)
        rows: Sequence[ck.TopicPartition] = answer[group].result().topic_partitions
        for row in rows:
            if row.error is not None:
                raise ck.KafkaException(row.error)
        return rows

    return ask()


class GroupOffsets:
    """The committed offsets of one consumer group that has no members.

    Args:
        worker: Settings on the cluster.
        group: The group's name.
    """

    def __init__(self, worker: WorkerSettings, group: str) -> None:
        self._clients = Clients(replace(worker, application_id=group))

    def read(self, tps: Collection[Tp]) -> Offsets:
        """Those of these partitions that it has."""
        with closing(self._clients.log_consumer("read_committed")) as consumer:
            rows = consumer.committed([ck.TopicPartition(*tp) for tp in tps], timeout=REQUEST_S)
        for row in rows:
            if row.error is not None:
                raise ck.KafkaException(row.error)
        return {
            Tp(row.topic, row.partition): Committed(row.offset, row.metadata or "") for row in rows if row.offset >= 0
        }

    def write(self, offsets: Offsets) -> None:
        """Commits them, all at once.

        Raises:
            KafkaException: The group has members, or no broker answers.
        """
        rows = [ck.TopicPartition(*tp, each.offset or 0, each.metadata) for tp, each in offsets.items()]
        with closing(self._clients.log_consumer("read_committed")) as consumer:
            consumer.commit(offsets=rows, asynchronous=False)


def wanted(committed: Committed) -> list[int]:
    """The offsets of the source that must be found in the copy, to move this one."""
    return [committed.offset or 0, *(last + 1 for last, _ in _steps(committed))]


def translated(committed: Committed, places: Mapping[int, Place]) -> Committed:
    """The same position in the copy. Counts of deliveries beside it (`uow.client.deliveries`) go along, any other text stays as it is."""
    offset = places[committed.offset or 0].offset
    steps = _steps(committed)
    if not steps:
        return Committed(offset, committed.metadata)
    moved = ((places[last + 1].offset - 1, count) for last, count in steps)
    return Committed(offset, write_steps(tuple(step for step in moved if step[0] >= offset)))


def _steps(committed: Committed) -> Steps:
    """Those that concern units from the position on."""
    return tuple(step for step in read_steps(committed.metadata, _ANY) if step[0] >= (committed.offset or 0))
