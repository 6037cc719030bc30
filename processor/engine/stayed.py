"""Values that stayed in `D.components` and are wanted after all: records of `D.errors` have them again, in portions (W-80, W-117).

A plan says which of its outputs lack a value. Whoever writes the plan asks for the outputs one by one, so that no more than a portion is in
memory, however much is given up at once. What is not there any more, or is another record, is told by `uow-error-value`, with the place:
nothing stands still for it.

Belongs here: what is asked for when, and what becomes of the answer. Does not belong here: how it is read (the port `Contents`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from processor.engine.hidden import shown_outputs
from processor.engine.ports import Contents, Output, Plan, RawRecord
from schemas.records import Component
from schemas.stayed import is_value
from topics import headers as names

PORTION_BYTES: Final = 16_777_216
"""Values read back at a time."""


def whole_outputs(plan: Plan, contents: Contents, is_late: Callable[[], bool] = lambda: False) -> Iterable[Output]:
    """The outputs of a plan, to be asked for once and one after the other.

    Args:
        plan: The plan.
        contents: Reads values back.
        is_late: Whether there is no more time for it; what is not read by then is told like what is gone.

    Raises:
        Doubt: While they are asked for: nobody answered.
    """
    return shown_outputs(plan, _whole(plan, contents, is_late) if plan.stayed else plan.outputs, contents)


def _whole(plan: Plan, contents: Contents, is_late: Callable[[], bool]) -> Iterator[Output]:
    portions = _portions(plan)
    found: dict[int, Output] = {}
    for index, output in enumerate(plan.outputs):
        if index not in plan.stayed:
            yield output
            continue
        if not found:
            found = _read(plan, next(portions), contents, is_late)
        yield found.pop(index)


def _portions(plan: Plan) -> Iterator[list[int]]:
    portion: list[int] = []
    size = 0
    for index, component in plan.stayed.items():
        portion.append(index)
        assert component.reference is not None
        size += component.reference.length
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    yield portion


def _read(plan: Plan, portion: Iterable[int], contents: Contents, is_late: Callable[[], bool]) -> dict[int, Output]:
    """In order of place: components are given up in number order and lie in order of arrival."""
    wanted = sorted((plan.stayed[index] for index in portion), key=_place)
    records: dict[tuple[str, int, int], RawRecord] = {}
    late = is_late()
    for record in () if late else contents.read(wanted):
        records[record.topic(), record.partition(), record.offset()] = record
        if late := is_late():
            break
    whole = {}
    for index in portion:
        component = plan.stayed[index]
        there = records.get(_place(component))
        if there is not None and is_value(component, there.value()):
            whole[index] = plan.outputs[index]._replace(value=there.value())
        else:
            whole[index] = _without(plan, index, "were not read back in time from" if late else "are gone from")
    return whole


def _place(component: Component) -> tuple[str, int, int]:
    source = component.source
    return source.topic, source.partition, source.offset


def _without(plan: Plan, index: int, why: str) -> Output:
    component, output = plan.stayed[index], plan.outputs[index]
    assert component.reference is not None
    told = f"{component.reference.length} bytes {why} {component.source}"
    return output._replace(headers=[*output.headers, (names.ERROR_VALUE, told.encode())])
