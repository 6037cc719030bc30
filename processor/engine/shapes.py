"""Shapes: how a unit is written to `D.units` (W-12, W-114 to W-117, W-208). Chosen once, when a destination is set up.

| Shape | Records of a unit |
| --- | --- |
| `envelope` | one; over the record limit, what `oversize` says |
| `consecutive` | one per component, neighbours in number order (`uow.topics.runs`) |
| `reference` | one; instead of key, value and headers of each component, where they are, and the value's length and CRC-32C |

A unit that fits in no way fails as if its group had been over a limit.

Belongs here: records of `D.units` that are units. Does not belong here: what a unit is made of (`uow.processor.core.virtual_message`), any other output
(`outputs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from uow.processor.core.changes import Closed
from uow.processor.core.group import Group
from uow.processor.core.rule_documents import Document, rule_formats
from uow.processor.core.virtual_message import UnitMaker, target_of
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Headers, Output
from uow.schemas import formats
from uow.schemas.checksum import by_reference
from uow.schemas.component import decode_component, encode_component
from uow.schemas.records import Range, Unit, UnitOutcome
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import Oversize, Shape, ValueFormat
from uow.topics.record_size import RecordLimit
from uow.topics.runs import first_of_many_gaps, record_headers, unit_part


def _plain(to_document: Callable[[Unit], bytes]) -> Document:
    return lambda unit, called: to_document(unit)


_FORMATS: dict[ValueFormat, Document] = {
    ValueFormat.JSON: _plain(formats.to_json),
    ValueFormat.XML: _plain(formats.to_xml),
}

UnitWriter = Callable[[Group, Closed, list[Output]], None]
"""Adds the records of one unit. Raises `UnitTooLargeForRecordError`, and has added nothing then."""


class UnitTooLargeForRecordError(Exception):
    """A unit over the record limit in its shape, or with too many records: the group fails instead (W-115). Does not leave the engine.

    The message goes on where a text names the unit and its size: "fits no record ...".
    """


class _Shape:
    """Base of the shapes.

    Args:
        context: Of the destination.
        partition: Of `D.components`, and of `D.units` that is written.
        maker: Makes the unit.
        row: Of the groups that it writes, where they are by rule.
    """

    def __init__(self, context: TaskContext, partition: int, maker: UnitMaker, row: GroupPolicy | None = None) -> None:
        self.topic, self.partition, self.maker = context.topics.units, partition, maker
        self.units = context.topics.units
        self.unit_header, self.limit = context.unit_header, RecordLimit(context.record_limit_bytes)
        self.format = _FORMATS.get(context.policy.value_format)
        self.most = (row or context.policy).max_run_components
        if row is not None:
            self.format = rule_formats(row).get(row.value_format)
            self.topic = row.target_topic or self.topic
        self.envelope_partition = -1 if self.topic != context.topics.units else partition
        """A target topic may have another number of partitions: the key decides there (B-57)."""
        self.targets = context.targets
        self.components, self.partitions = context.topics.components, context.partitions

    def document(self, unit: Unit, group: Group) -> bytes:
        """The unit in the format that is not Avro."""
        assert self.format is not None
        return self.format(unit, group.ruled.called if group.ruled is not None else None)

    def refuse(self, group: Group, closed: Closed, outputs: list[Output]) -> NoReturn:
        """`oversize = "fail"`, and the last resort of other shapes."""
        text = f"fits no record of topic {self._topic_of(group)}, where {self.limit.limit_bytes} bytes are the most"
        raise UnitTooLargeForRecordError(text)

    def _topic_of(self, group: Group) -> str:
        return self.topic if group.ruled is None else target_of(group, self.units)[0]

    def sent(self, group: Group, value: bytes, headers: Headers) -> Output:
        """The one record of a unit: where its call asks for it, if it is one of a fan-out (B-91)."""
        called = group.ruled.called if group.ruled is not None else None
        if called is None:
            return Output(self.topic, self.envelope_partition, group.id, value, headers)
        topic, key = target_of(group, self.units)
        return Output(topic, self.partition if topic == self.units else -1, key, value, headers)

    def identity(self, group: Group, closed: Closed) -> tuple[bytes, tuple[Range, ...], Headers]:
        """`uow-unit-id`, missing numbers and headers of the unit."""
        tail = self.maker.tail(group)
        unit_id = self.maker.unit_id(group.id, group.generation, tail)
        missing = group.missing() if closed.outcome is UnitOutcome.PARTIAL else ()
        return unit_id, missing, self.maker.headers(group, closed, unit_id, tail, missing)


class EnvelopeShape(_Shape):
    """One record with everything in it; what is too large for it is written by `oversize`."""

    def __init__(
        self,
        context: TaskContext,
        partition: int,
        maker: UnitMaker,
        oversize: UnitWriter | None,
        row: GroupPolicy | None = None,
    ) -> None:
        super().__init__(context, partition, maker, row)
        self._oversize = oversize or self.refuse

    def __call__(self, group: Group, closed: Closed, outputs: list[Output]) -> None:
        maker = self.maker
        if group.bytes > self.limit.limit_bytes:
            self._oversize(group, closed, outputs)
            return
        tail = maker.tail(group)
        unit_id = maker.unit_id(group.id, group.generation, tail)
        missing = group.missing() if closed.outcome is UnitOutcome.PARTIAL else ()
        if self.format is None:
            value = maker.body(self.unit_header, group, closed, unit_id, missing)
        else:
            value = self.document(maker.record(group, closed, unit_id, missing), group)
        headers = maker.headers(group, closed, unit_id, tail, missing)
        output = self.sent(group, value, headers)
        if not self.limit.fits_unit(output.key or b"", value, headers):
            self._oversize(group, closed, outputs)
            return
        outputs.append(output)


class ConsecutiveShape(_Shape):
    """One record per component, one after the other: a plan's outputs go to their partition in order, and nobody else writes there (W-12)."""

    def __call__(self, group: Group, closed: Closed, outputs: list[Output]) -> None:
        if len(group.held) > self.most:
            raise UnitTooLargeForRecordError(f"would be a run of more than {self.most} records (max_run_components)")
        count = self.targets.partitions.get(self.topic, self.partitions)
        if (
            count != self.partitions and self.topic not in self.targets.away
        ):  # else it waits until that is mended (B-57)
            needed = f"needs as many partitions as {self.components}, {self.partitions}"
            raise UnitTooLargeForRecordError(
                f"would be a run, for which topic {self.topic} {needed}, and it has {count}"
            )
        _, missing, headers = self.identity(group, closed)
        is_user_header = self.maker.reading.is_user_header
        common = unit_part(headers, group.opened_at, closed.at, group.bytes, is_user_header)
        count = len(group.held)
        run: list[Output] = []
        for position, component in enumerate(map(decode_component, group.in_order()), 1):
            said = record_headers(common, component, position, count, is_user_header)
            if position == 1:
                said = first_of_many_gaps(said, missing)
            if not self.limit.fits(group.id, component.value, said):
                self.refuse(group, closed, outputs)
            run.append(Output(self.topic, self.partition, group.id, component.value, said))
        outputs += run


class ReferenceShape(_Shape):
    """One record that says where the components are."""

    def __call__(self, group: Group, closed: Closed, outputs: list[Output]) -> None:
        unit_id, missing, headers = self.identity(group, closed)
        components = [by_reference(decode_component(body)) for body in group.in_order()]
        if self.format is None:
            value = self.maker.body(
                self.unit_header,
                group,
                closed,
                unit_id,
                missing,
                [encode_component(component) for component in components],
            )
        else:
            unit = self.maker.record(group, closed, unit_id, missing)
            value = self.document(replace(unit, components=tuple(components)), group)
        output = self.sent(group, value, headers)
        if not self.limit.fits(output.key, value, headers):
            self.refuse(group, closed, outputs)
        outputs.append(output)


def unit_writer(context: TaskContext, partition: int, maker: UnitMaker, row: GroupPolicy | None = None) -> UnitWriter:
    """Who writes the units of one partition: of units of work, or of the groups of one row."""
    policy = context.policy if row is None else row
    shape, oversize = policy.shape, policy.oversize
    if row is not None and row.gathers_replies:  # a unit of no reply has no run of records either
        shape = Shape.REFERENCE if shape is Shape.REFERENCE else Shape.ENVELOPE
        oversize = Oversize.FAIL if oversize is Oversize.CONSECUTIVE else oversize
    match shape:
        case Shape.CONSECUTIVE:
            return ConsecutiveShape(context, partition, maker, row)
        case Shape.REFERENCE:
            return ReferenceShape(context, partition, maker, row)
        case Shape.ENVELOPE:
            otherwise: dict[Oversize, UnitWriter | None] = {
                Oversize.FAIL: None,
                Oversize.CONSECUTIVE: ConsecutiveShape(context, partition, maker, row),
                Oversize.REFERENCE: ReferenceShape(context, partition, maker, row),
            }
            return EnvelopeShape(context, partition, maker, otherwise[oversize], row)
