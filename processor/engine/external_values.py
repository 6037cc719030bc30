"""Reads external values back for records of `D.errors`, in portions (W-80, W-117).

Under shape `reference` a component's value stays in `D.components`. A plan says which of its outputs lack a value. The sink iterates over the
outputs, so that no more than a portion is in memory, however much is given up at once. Where the value is gone, or another record lies in its
place, the output says so in the header `uow-error-value`, with the place; nothing waits for it.

Belongs here: the portions, and the outputs with and without their value. Does not belong here: reading records (the port `Contents`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from uow.processor.engine.hidden_headers import shown_outputs
from uow.processor.engine.ports import (
    Contents,
    Output,
    Plan,
    RawRecord,
)
from uow.schemas.claim_check import is_value
from uow.schemas.records import ComponentRecord
from uow.topics import headers as names

PORTION_BYTES: Final = 16_777_216
"""Values read back at a time."""


def whole_outputs(plan: Plan, contents: Contents, is_late: Callable[[], bool] = lambda: False) -> Iterable[Output]:
    """The outputs of a plan, to be iterated once.

    Args:
        plan: The plan.
        contents: Reads values back.
        is_late: Returns True once there is no more time; a value that is not read by then is reported like one that is gone.

    Raises:
        Doubt: While one iterates: no broker answered in time.
    """
    return shown_outputs(plan, _whole(plan, contents, is_late) if plan.external else plan.outputs, contents)


def _whole(plan: Plan, contents: Contents, is_late: Callable[[], bool]) -> Iterator[Output]:
    portions = _portions(plan)
    found: dict[int, Output] = {}
    for index, output in enumerate(plan.outputs):
        if index not in plan.external:
            yield output
            continue
        if not found:
            found = _read(plan, next(portions), contents, is_late)
        yield found.pop(index)


def _portions(plan: Plan) -> Iterator[list[int]]:
    portion: list[int] = []
    size = 0
    for index, component in plan.external.items():
        portion.append(index)
        assert component.reference is not None
        size += component.reference.length
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    yield portion


def _read(plan: Plan, portion: Iterable[int], contents: Contents, is_late: Callable[[], bool]) -> dict[int, Output]:
    """Reads in order of place: components are given up in number order and lie in order of arrival."""
    wanted = sorted((plan.external[index] for index in portion), key=_place)
    records: dict[tuple[str, int, int], RawRecord] = {}
    late = is_late()
    for record in () if late else contents.read(wanted):
        records[record.topic(), record.partition(), record.offset()] = record
        if late := is_late():
            break
    whole = {}
    for index in portion:
        component = plan.external[index]
        there = records.get(_place(component))
        if there is not None and is_value(component, there.value()):
            whole[index] = plan.outputs[index]._replace(value=there.value())
        else:
            whole[index] = _without(plan, index, "were not read back in time from" if late else "are gone from")
    return whole


def _place(component: ComponentRecord) -> tuple[str, int, int]:
    source = component.source
    return source.topic, source.partition, source.offset


def _without(plan: Plan, index: int, why: str) -> Output:
    component, output = plan.external[index], plan.outputs[index]
    assert component.reference is not None
    text = f"{component.reference.length} bytes {why} {component.source}"
    return output._replace(headers=[*output.headers, (names.ERROR_VALUE, text.encode())])
