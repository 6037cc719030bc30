"""Units built again from `D.components`, for a past interval, with the same or other settings (W-209). Reads only.

Theory of operation. All input that still exists is played again, in memory, through the worker's own task: components and commands in
the order of their append times, up to the offsets that the workers have committed. A command that failed there, as its answer says, does nothing here either: its
sender was told so. Partitions are independent of each other. A unit belongs to
the interval if its group closed in it, a moment that follows from the log. With the settings of the workers the same units come out, byte for
byte and with the same `uow-unit-id`. So a unit differs from `D.units` only because of other settings, or because old input was deleted.

Belongs here: playing and comparing. Does not belong here: rules (`uow.processor.core`), tables (`uow.spark_sink.audit` compares those).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import merge
from types import MappingProxyType

from uow.config.loading import Settings
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import (
    Headers,
    LogReader,
    Output,
    Plan,
    RawRecord,
    Tp,
)
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.schemas import codec
from uow.schemas.error_classes import DecodeError, UowError
from uow.schemas.records import Answer
from uow.schemas.registry import Registry
from uow.spark_sink.destination_rules import NO_RULES, DestinationRules
from uow.topics import headers as names
from uow.topics.catalogue import expected, rules_topic
from uow.topics.commands import KIND_ANSWER, RecordPlace, has_failed
from uow.topics.routes import unit_topics

Content = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""A record of a unit: topic, key, value, headers."""


class RebuildChange(StrEnum):
    """Kinds of difference between rebuilt and delivered units."""

    CHANGED = "changed"
    ONLY_REBUILT = "only rebuilt"
    ONLY_DELIVERED = "only delivered"


@dataclass(slots=True)
class RebuiltUnit:
    """A unit: one record, or several in shape `consecutive`.

    Attributes:
        unit_id: `uow-unit-id`.
        id: Group id.
        outcome: `uow-outcome`.
        at: When its group closed (rebuilt), or when it was written (delivered), epoch ms.
        records: Its records, in order.
    """

    unit_id: bytes
    id: bytes
    outcome: bytes
    at: int
    records: list[Content] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RebuildDifference:
    """A unit that differs from the delivered one."""

    what: RebuildChange
    unit: RebuiltUnit


def rebuilt(
    reader: LogReader, context: TaskContext, until_ms: int, registry: Registry | None = None
) -> dict[bytes, RebuiltUnit]:
    """Every unit that results from the input, of groups that closed before this moment or by a record after it, by `uow-unit-id`.

    Args:
        reader: Where to read from.
        context: Of the destination, with the settings to build by.
        until_ms: The moment.
        registry: Where answers to commands are framed by its ids.
    """
    units: dict[bytes, RebuiltUnit] = {}
    for number in range(context.partitions):
        failed = _failed_commands(reader, context, number, registry)
        for plan in _plans(reader, context, number, until_ms, failed):
            closed = {(each.id, each.generation): each.at for each in read_ledger(plan.ledger or b"")[1]}
            for output in plan.outputs:
                if context.policy.forms_units and names.is_unit(output.headers):
                    said = dict(output.headers)
                    _add(units, output, closed[said[names.ID] or b"", int(said[names.GENERATION] or b"")])
    return units


def _failed_commands(
    reader: LogReader, context: TaskContext, number: int, registry: Registry | None
) -> dict[int, UowError]:
    """Offsets of the commands of one partition that failed, each with its answer, which is in the same partition of `D.outcomes`."""
    outcomes = Tp(context.topics.outcomes, number)
    failed = {}
    for _, records in reader.read(reader.bounds([outcomes])):
        for said, record in [(dict(each.headers() or []), each) for each in records]:
            place = RecordPlace.parse((said.get(names.SOURCE) or b"").decode(errors="replace"))
            if said.get(names.KIND) != KIND_ANSWER or place is None or place.topic != context.topics.commands:
                continue
            try:
                answer = codec.decode_as(Answer, record.value() or b"", registry=registry)
            except DecodeError:
                continue
            if has_failed(answer):
                failed[place.offset] = UowError(answer.text)
    return failed


def _plans(
    reader: LogReader, context: TaskContext, number: int, until_ms: int, failed: Mapping[int, UowError]
) -> Iterator[Plan]:
    """The plans that a worker would have made for one partition, from the start of its log to the committed offset."""
    tp, orders = Tp(context.topics.components, number), Tp(context.topics.commands, number)
    bounds, committed = reader.bounds([tp, orders]), reader.committed([tp, orders])
    task = PartitionTask(tp, context)
    task.restore(bounds[tp][0], 0, (), 0, bounds[orders][0])
    commands = [
        record
        for _, stretch in reader.read({orders: (bounds[orders][0], committed[orders].offset or 0)})
        for record in stretch
    ]
    for _, records in reader.read({tp: (bounds[tp][0], committed[tp].offset or 0)}):
        last = records[-1].timestamp()[1]
        due = [each for each in commands if each.timestamp()[1] < last]
        commands = commands[len(due) :]
        yield from _played(task, records, due, failed)
    yield from _played(task, [], commands, failed)
    while (plan := task.tick(until_ms - 1)) is not None:
        yield plan
        if not plan.is_cut:
            return


def _taken(task: PartitionTask, records: Sequence[RawRecord], commands: Sequence[RawRecord]) -> Iterator[Plan]:
    """The plans for all of these. One that is full, or ends before a row that is not known yet, leaves the rest to the next."""
    while True:
        plan = task.process(records, commands)
        yield plan
        if not plan.is_cut:
            return
        if plan.awaits_rule is not None:
            task.read_rules(records[-1].offset() + 1 if records else 0, lambda: None)
        records = [each for each in records if each.offset() >= plan.next_offset]
        commands = [each for each in commands if each.offset() >= plan.next_command]


def _played(
    task: PartitionTask, records: Sequence[RawRecord], commands: Sequence[RawRecord], failed: Mapping[int, UowError]
) -> Iterator[Plan]:
    """The plans of these; a command among them that failed has its own."""
    if not any(each.offset() in failed for each in commands):
        yield from _taken(task, records, commands)
        return
    for each in _in_turn(records, commands):
        if each.topic() == task.tp.topic:
            yield from _taken(task, [each], [])
        elif (why := failed.get(each.offset())) is None:
            yield from _taken(task, [], [each])
        else:
            yield task.refuse_command(each, why)


def _in_turn(records: Iterable[RawRecord], commands: Iterable[RawRecord]) -> Iterator[RawRecord]:
    """In the order of their append times; a record goes before a command of the same moment."""
    return merge(records, commands, key=lambda each: each.timestamp()[1])


def _add(units: dict[bytes, RebuiltUnit], output: Output, at: int) -> None:
    said = dict(output.headers)
    unit_id = said[names.UNIT_ID] or b""
    unit = units.setdefault(
        unit_id, RebuiltUnit(unit_id, said.get(names.ID) or b"", said.get(names.OUTCOME) or b"", at)
    )
    unit.records.append((output.topic, output.key, output.value, tuple(output.headers)))


def delivered(
    reader: LogReader,
    context: TaskContext,
    targets: Mapping[str, int] = MappingProxyType({}),
    others: Collection[str] = (),
) -> dict[bytes, RebuiltUnit]:
    """Every unit that is in the destination's output topics, by `uow-unit-id`.

    Args:
        reader: Reads them.
        context: Of the destination, as it is configured.
        targets: Partition counts of the target topics of its rules.
        others: Ids of the rules of other destinations, whose units may stand there as well.
    """
    units: dict[bytes, RebuiltUnit] = {}
    for topic in unit_topics(context.policy.routes, context.topics.units, targets):
        tps = [Tp(topic, number) for number in range(targets.get(topic, context.partitions))]
        for tp, records in reader.read(reader.bounds(tps)):
            for record in records:
                headers = record.headers() or []
                is_own = any(name == names.UNIT_ID for name, _ in headers) and _rule_id(headers) not in others
                if names.is_unit(headers) and is_own:
                    _add(units, _as_output(tp, record), record.timestamp()[1])
    return units


def _rule_id(headers: Headers) -> str:
    """The rule that made a unit; empty for a unit of work."""
    said = next((value for name, value in headers if name == names.RULE), None)
    return (said or b"").partition(b"/")[0].decode(errors="replace")


def whose_topic(topic: str, settings: Settings, rules: Mapping[str, DestinationRules]) -> str:
    """Whose topic this is, in words, where its readers would take rebuilt units for new ones; nothing for a topic that nobody is known to read.

    Args:
        topic: Its name.
        settings: The configuration.
        rules: The rules of its destinations.
    """
    for name, policy in settings.destinations.items():
        targets = dict.fromkeys(rules.get(name, NO_RULES).targets, False)
        if topic in {spec.name for spec in expected(settings.application_id, name, policy, targets=targets)}:
            return f"a topic of destination {name}, of its routes or of its rules"
    for name, router in settings.routers.items():
        if topic in {*router.inputs, rules_topic(settings.application_id)}:
            return f"a topic of router {name}"
    return ""


def _as_output(tp: Tp, record: RawRecord) -> Output:
    return Output(tp.topic, tp.partition, record.key(), record.value(), record.headers() or [])


def differences(
    again: Mapping[bytes, RebuiltUnit], before: Mapping[bytes, RebuiltUnit], first_ms: int, last_ms: int
) -> Iterator[RebuildDifference]:
    """Units of the interval that differ from the delivered ones, in the order in which their groups closed. The last moment is no part of it."""
    for unit in sorted(again.values(), key=lambda each: (each.at, each.id)):
        if first_ms <= unit.at < last_ms:
            there = before.get(unit.unit_id)
            if there is None:
                yield RebuildDifference(RebuildChange.ONLY_REBUILT, unit)
            elif there.records != unit.records:
                yield RebuildDifference(RebuildChange.CHANGED, unit)
    for unit in sorted(before.values(), key=lambda each: (each.at, each.id)):
        if first_ms <= unit.at < last_ms and unit.unit_id not in again:
            yield RebuildDifference(RebuildChange.ONLY_DELIVERED, unit)
