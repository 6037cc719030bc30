"""What people see of groups, from logs in memory (W-201)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from uow.ops.inspect import (
    COUNTED,
    inspect_group,
    open_groups,
    totals,
    waiting,
)
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_view import OpenGroup, hops
from uow.processor.engine.ports import (
    Committed,
    Plan,
    Stretch,
    Tp,
)
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import Range, UnitOutcome, ranges_text
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.partitioner import partition_for
from uow.topics.policies import DestinationPolicy, HandlingPolicy

TOPICS = DestinationTopics("shop", "megazon")
PARTITIONS = 2
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class RecordInMemory:
    """A consumed record."""

    tp: Tp
    at: int
    raw_key: bytes | None
    raw_value: bytes | None
    pairs: list[tuple[str, bytes | None]] = field(default_factory=list)
    time: int = 0

    def topic(self) -> str:
        return self.tp.topic

    def partition(self) -> int:
        return self.tp.partition

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self.pairs

    def timestamp(self) -> tuple[int, int]:
        return 2, self.time


class LogsInMemory:
    """Topics in memory with a worker at work: each plan leaves its rows, its ledger record and a marker in both logs."""

    def __init__(self, policy: DestinationPolicy, topics: DestinationTopics = TOPICS, **more: Any) -> None:
        self.topics = topics
        self.context = TaskContext(topics.destination, topics, policy, PARTITIONS, b"", b"", **more)
        self.logs: dict[Tp, list[RecordInMemory | None]] = {}
        self.tasks: dict[int, PartitionTask] = {}
        self.committed_offsets: dict[Tp, int] = {}
        self.on_bounds = lambda: None
        for partition in range(PARTITIONS):
            self.tasks[partition] = PartitionTask(Tp(self.topics.components, partition), self.context)
            for topic in (self.topics.components, self.topics.groups_changelog, self.topics.closed_changelog):
                self.logs[Tp(topic, partition)] = []

    def arrive(
        self, id: str, *numbers: int, end: bool = False, at: int = 0, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Components come in, the last one with the end mark if told; the worker commits once."""
        partition = partition_for(id.encode(), PARTITIONS)
        tp = Tp(self.topics.components, partition)
        log, records = self.logs[tp], []
        for number in numbers:
            last = end and number == numbers[-1]
            marks = [("uow-id", id.encode()), ("uow-seq", b"%d" % number), *([("uow-end", b"true")] if last else [])]
            record = RecordInMemory(tp, len(log), id.encode(), b"value %d" % number, [*marks, *headers], at)
            log.append(record)
            records.append(record)
        self.commit(self.tasks[partition].process(records))

    def commit(self, plan: Plan | None) -> None:
        assert plan is not None
        changelog = self.logs[Tp(self.topics.groups_changelog, plan.tp.partition)]
        for key, value in plan.changelog:
            changelog.append(
                RecordInMemory(Tp(self.topics.groups_changelog, plan.tp.partition), len(changelog), key, value)
            )
        ledger = self.logs[Tp(self.topics.closed_changelog, plan.tp.partition)]
        ledger.append(
            RecordInMemory(Tp(self.topics.closed_changelog, plan.tp.partition), len(ledger), None, plan.ledger)
        )
        changelog.append(None)
        ledger.append(None)
        self.committed_offsets[plan.tp] = plan.next_offset

    # -- LogReader

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        return {tp: Committed(self.committed_offsets.get(tp), "") for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        found = {tp: (0, len(self.logs[tp])) for tp in tps}
        self.on_bounds()
        return found

    def stable_bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return self.bounds(tps)

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, (start, end) in ranges.items():
            yield from ((tp, [record]) for record in self.logs[tp][start:end] if record is not None)


def logs(**policy: int) -> LogsInMemory:
    return LogsInMemory(DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY, **policy))


def only(groups: list[OpenGroup]) -> OpenGroup:
    (group,) = groups
    return group


def test_held_and_missing_numbers_are_ranges() -> None:
    """W-201."""
    kafka = logs()
    kafka.arrive("order", 1, 2, 4, 7, end=True)
    group = only(open_groups(kafka, kafka.context))
    assert (ranges_text(group.held), ranges_text(group.missing), group.end) == ("1-2,4,7", "3,5-6", 7)
    assert (group.id, group.count, group.partition) == ("order", 4, partition_for(b"order", PARTITIONS))


def test_unknown_end_leaves_the_missing_numbers_open() -> None:
    kafka = logs()
    kafka.arrive("order", 1, 3)
    group = only(open_groups(kafka, kafka.context))
    assert (ranges_text(group.missing), group.end) == ("2,4-", None)


def test_what_commands_said_of_a_group_is_seen_w201_w203_w211() -> None:
    kafka = logs(incomplete_expiration_ms=100)
    kafka.arrive("order", 1, 3, at=1000)
    task = kafka.tasks[partition_for(b"order", PARTITIONS)]
    assert only(open_groups(kafka, kafka.context)).is_at_risk(1080)
    for offset, command in enumerate(
        (
            Command(b"1", Verb.WAIVE, b"order", "why", numbers=(Range(2, 2),)),
            Command(b"2", Verb.DECLARE_END, b"order", "why", numbers=(Range(4, 4),)),
            Command(b"3", Verb.EXTEND, b"order", "why", until=1400),
        )
    ):
        record = RecordInMemory(
            Tp(TOPICS.commands, task.tp.partition), offset, b"order", None, command_headers(command), 1050
        )
        kafka.commit(task.process([], [record]))
    group = only(open_groups(kafka, kafka.context))
    assert (ranges_text(group.missing), ranges_text(group.waived), group.end) == ("2,4", "2", 4)
    assert (group.deadline, group.is_at_risk(1080)) == (1400, False)


def test_oldest_group_comes_first_whatever_its_partition() -> None:
    kafka = logs()
    for at, name in enumerate(["d", "c", "b", "a"]):
        kafka.arrive(name, 1, at=1000 + at)
    assert [group.id for group in open_groups(kafka, kafka.context)] == ["d", "c", "b", "a"]


def test_deadline_is_the_age_limit_from_the_first_component() -> None:
    """W-70."""
    kafka = logs(incomplete_expiration_ms=100)
    kafka.arrive("order", 3, at=1000)
    kafka.arrive("order", 1, at=1050)
    assert only(open_groups(kafka, kafka.context)).deadline == 1100


def test_group_without_limit_has_no_deadline_and_is_never_at_risk() -> None:
    """W-72."""
    kafka = logs()
    kafka.arrive("order", 1, at=1000)
    group = only(open_groups(kafka, kafka.context))
    assert group.deadline is None
    assert not group.is_at_risk(1000 + 3650 * DAY_MS)


def test_group_is_at_risk_from_80_percent_of_its_time() -> None:
    """W-211."""
    kafka = logs(incomplete_expiration_ms=100)
    kafka.arrive("order", 1, at=1000)
    group = only(open_groups(kafka, kafka.context))
    assert [group.is_at_risk(now) for now in (1079, 1080)] == [False, True]


def test_totals_tell_what_each_partition_holds_and_remembers() -> None:
    """EN-10, as far as the logs know it."""
    kafka = logs()
    kafka.arrive("order", 1, 3)
    kafka.arrive("whole", 1, 2, end=True)
    kafka.arrive("other", 2)
    found = totals(kafka, kafka.context)
    assert [each.partition for each in found] == list(range(PARTITIONS))
    assert [each.behind for each in found] == [0] * PARTITIONS
    assert sum(each.groups for each in found) == 2
    assert sum(each.components for each in found) == 3
    assert sum(each.bytes for each in found) == sum(group.bytes for group in open_groups(kafka, kafka.context))
    assert sum(each.closed[UnitOutcome.COMPLETE] for each in found) == 1
    assert sum(sum(each.closed.values()) for each in found) == 1


def test_look_gives_components_in_order_of_arrival_with_their_hops() -> None:
    """W-201, W-60."""
    kafka = logs()
    kafka.arrive("order", 3, end=True, at=1000, headers=[("uow-hops", b"gadget-planet,widget-world")])
    kafka.arrive("order", 1, at=1005)
    found = inspect_group(kafka, kafka.context, "order")
    assert found.open is not None
    assert found.closed is None
    assert [(each.seq, each.end, each.timestamp) for each in found.components] == [(3, True, 1000), (1, False, 1005)]
    assert [hops(each) for each in found.components] == [("gadget-planet", "widget-world"), ()]
    assert [each.source.offset for each in found.components] == [0, 1]


def test_look_tells_how_a_group_closed() -> None:
    kafka = logs()
    kafka.arrive("order", 1, 2, end=True, at=1000)
    found = inspect_group(kafka, kafka.context, "order")
    assert found.open is None
    assert found.closed is not None
    closed = found.closed.closed
    assert (closed.outcome, str(closed.reason), closed.highest, closed.at) == (UnitOutcome.COMPLETE, "end", 2, 1000)


def test_look_tells_how_a_group_expired() -> None:
    kafka = logs(incomplete_expiration_ms=100)
    kafka.arrive("order", 1, at=1000)
    kafka.commit(kafka.tasks[partition_for(b"order", PARTITIONS)].tick(1101))
    found = inspect_group(kafka, kafka.context, "order")
    assert found.closed is not None
    assert (found.closed.closed.outcome, str(found.closed.closed.reason)) == (UnitOutcome.EXPIRED, "age")


def test_look_finds_nothing_of_an_unknown_id() -> None:
    kafka = logs()
    kafka.arrive("order", 1)
    found = inspect_group(kafka, kafka.context, "other")
    assert (found.open, found.closed) == (None, None)


def test_destination_that_nobody_wrote_to_has_no_groups() -> None:
    kafka = logs()
    assert open_groups(kafka, kafka.context) == []


@pytest.mark.parametrize("times", [1, 2, 3])
def test_worker_may_commit_while_somebody_looks(times: int) -> None:
    """Between any two questions a transaction is committed: the answer is that of some moment, and never a refusal."""
    kafka = logs()
    kafka.arrive("first", 1, 2)
    asked = 0

    def commit_meanwhile() -> None:
        nonlocal asked
        asked += 1
        if asked <= times:
            kafka.arrive(f"later-{asked}", 1)
        if asked == 1:
            kafka.arrive("first", 3, end=True)

    kafka.on_bounds = commit_meanwhile
    assert "first" not in [group.id for group in open_groups(kafka, kafka.context)]


def test_logs_that_do_not_agree_are_told() -> None:
    kafka = logs()
    kafka.arrive("order", 1)
    for log in (Tp(TOPICS.closed_changelog, p) for p in range(PARTITIONS)):
        kafka.logs[log] = [record and RecordInMemory(log, record.at, None, b"banana") for record in kafka.logs[log]]
    with pytest.raises(StateCorruptedError, match="ledger"):
        open_groups(kafka, kafka.context)


def test_markers_at_the_end_are_nothing_that_waits_and_many_records_are_told_by_offsets() -> None:
    """Only who reads knows: a marker has an offset, and no record."""
    kafka = logs()
    kafka.arrive("order", 1)
    tp = Tp(TOPICS.components, partition_for(b"order", PARTITIONS))
    position = len(kafka.logs[tp])
    kafka.logs[tp] += [None, None]
    assert waiting(kafka, {tp: position}) == {tp: 0}
    kafka.logs[tp] += [RecordInMemory(tp, position + 2 + number, None, b"x") for number in range(COUNTED)]
    assert waiting(kafka, {tp: position}) == {tp: COUNTED}
    kafka.logs[tp].append(RecordInMemory(tp, position + 2 + COUNTED, None, b"x"))
    assert waiting(kafka, {tp: position}) == {tp: COUNTED + 3}


@pytest.mark.parametrize("code", [KafkaError._BAD_COMPRESSION, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_batch_that_nobody_can_fetch_counts_by_its_offsets_and_another_error_is_told(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    kafka = logs()
    tp = Tp(TOPICS.components, 0)
    kafka.logs[tp] += [RecordInMemory(tp, number, None, b"x") for number in range(3)]

    def read(ranges: object) -> Iterator[Stretch]:
        raise KafkaException(KafkaError(code))

    monkeypatch.setattr(kafka, "read", read)
    if code == KafkaError._BAD_COMPRESSION:
        assert waiting(kafka, {tp: 0}) == {tp: 3}
    else:
        with pytest.raises(KafkaException):
            waiting(kafka, {tp: 0})
