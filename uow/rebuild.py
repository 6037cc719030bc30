"""Units built again from `D.components`, for a past interval, under other settings if wanted (W-209). Reads only.

Theory of operation. The whole input that is still there is played again, in memory, through the worker's own task: components and commands in
the order of their append times, as far as the workers have committed. Each partition stands for itself. A unit belongs to the interval by the
moment when its group closed, which follows from the log. Under the settings that the workers had, the same units come out, byte for byte
and with the same `uow-unit-id`; so what differs from `D.units` differs because of other settings, or because the input no longer reaches back.

Belongs here: playing and comparing. Does not belong here: rules (`processor.core`), tables (`spark_sink.audit` compares those).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from processor.engine.context import TaskContext
from processor.engine.ports import LogReader, Output, Plan, RawRecord, Tp
from processor.engine.rows import read_ledger
from processor.engine.task import PartitionTask
from topics import headers as names
from topics.routes import unit_topics

Content = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""What a record of a unit is: topic, key, value, headers."""


class What(StrEnum):
    """How a unit differs."""

    CHANGED = "changed"
    ONLY_REBUILT = "only rebuilt"
    ONLY_DELIVERED = "only delivered"


@dataclass(slots=True)
class Unit:
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
class Difference:
    """A unit that is not as it was delivered."""

    what: What
    unit: Unit


def rebuilt(reader: LogReader, context: TaskContext, until_ms: int) -> dict[bytes, Unit]:
    """Every unit that the input makes up to this moment, by `uow-unit-id`."""
    units: dict[bytes, Unit] = {}
    for number in range(context.partitions):
        for plan in _plans(reader, context, number, until_ms):
            closed = {(each.id, each.generation): each.at for each in read_ledger(plan.ledger or b"")[1]}
            for output in plan.outputs:
                if context.policy.forms_units and names.is_unit(output.headers):
                    said = dict(output.headers)
                    _add(units, output, closed[said[names.ID] or b"", int(said[names.GENERATION] or b"")])
    return units


def _plans(reader: LogReader, context: TaskContext, number: int, until_ms: int) -> Iterator[Plan]:
    """What a worker would have done with one partition, from the start of its log to what the workers have committed."""
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
        yield task.process(records, due)
    if commands:
        yield task.process([], commands)
    plan = task.tick(until_ms)
    if plan is not None:
        yield plan


def _add(units: dict[bytes, Unit], output: Output, at: int) -> None:
    said = dict(output.headers)
    unit_id = said[names.UNIT_ID] or b""
    unit = units.setdefault(unit_id, Unit(unit_id, said.get(names.ID) or b"", said.get(names.OUTCOME) or b"", at))
    unit.records.append((output.topic, output.key, output.value, tuple(output.headers)))


def delivered(reader: LogReader, context: TaskContext) -> dict[bytes, Unit]:
    """Every unit that is in the destination's output topics, by `uow-unit-id`."""
    units: dict[bytes, Unit] = {}
    for topic in unit_topics(context.policy.routes, context.topics.units):
        tps = [Tp(topic, number) for number in range(context.partitions)]
        for tp, records in reader.read(reader.bounds(tps)):
            for record in records:
                headers = record.headers() or []
                if names.is_unit(headers) and any(name == names.UNIT_ID for name, _ in headers):
                    _add(units, _as_output(tp, record), record.timestamp()[1])
    return units


def _as_output(tp: Tp, record: RawRecord) -> Output:
    return Output(tp.topic, tp.partition, record.key(), record.value(), record.headers() or [])


def differences(
    again: Mapping[bytes, Unit], before: Mapping[bytes, Unit], first_ms: int, last_ms: int
) -> Iterator[Difference]:
    """Units of the interval that are not as they were delivered, in the order of their closing."""
    for unit in sorted(again.values(), key=lambda each: (each.at, each.id)):
        if first_ms <= unit.at <= last_ms:
            there = before.get(unit.unit_id)
            if there is None:
                yield Difference(What.ONLY_REBUILT, unit)
            elif there.records != unit.records:
                yield Difference(What.CHANGED, unit)
    for unit in sorted(before.values(), key=lambda each: (each.at, each.id)):
        if first_ms <= unit.at <= last_ms and unit.unit_id not in again:
            yield Difference(What.ONLY_DELIVERED, unit)
