"""Under shape `reference` a worker holds no values; what is given up has them all the same, read back from `D.components` (W-80, W-117)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from tests.core.script import (
    TOPICS,
    Sent,
    Step,
    Story,
    c,
    clock,
    context_of,
    play,
    policy_of,
    refused,
    story,
    told,
    unit,
)
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT
from uow.processor.engine import external_values as external
from uow.processor.engine.external_values import whole_outputs
from uow.processor.engine.group_storage import is_replayable
from uow.processor.engine.ports import (
    Doubt,
    Output,
    RawRecord,
    Tp,
)
from uow.processor.engine.replayable import NO_REPLAY, ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import ROW_HEADER, ROW_WITHOUT_VALUE
from uow.processor.engine.task import PartitionTask
from uow.schemas.claim_check import SHORT_BYTES
from uow.schemas.component import decode_component
from uow.schemas.digest import UnitDigest
from uow.schemas.error_classes import DuplicateSequenceNumberError
from uow.schemas.records import ComponentRecord
from uow.topics.policies import (
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    FieldSource,
    Shape,
    ViolationPolicy,
)

REFERENCE: dict[str, Any] = {"shape": Shape.REFERENCE}
REDIRECT: dict[str, Any] = {"incomplete_expiration_ms": 10_000, "expiration_policy": ExpirationPolicy.REDIRECT}
WIDE = ReplayLimits(1_000_000, 1 << 40, 1 << 40)
LONG, OTHER = "one" * 1_000, "two" * 1_000


def errors_of(played: Story) -> list[Output]:
    return [output for output in played.outputs if output.topic == TOPICS.errors]


def digest_of(*values: str) -> bytes:
    made = UnitDigest()
    for value in values:
        made.add(value.encode())
    return made.header()


class WorkerLife:
    """A worker's partition over restarts, with what a broker would keep."""

    def __init__(self, policy: DestinationPolicy, limits: ReplayLimits = NO_REPLAY) -> None:
        self.logs = Logs(INPUT)
        self.story = Story(PartitionTask(INPUT, context_of(policy, replay=limits)))

    def send(self, *steps: Step) -> WorkerLife:
        before = len(self.story.plans)
        self.story.send(*steps)
        self.logs.take_input([record for _, record in sorted(self.story.lying.items())])
        for plan in self.story.plans[before:]:
            self.logs.add(plan)
        return self

    def restart(self, policy: DestinationPolicy, limits: ReplayLimits = NO_REPLAY) -> WorkerLife:
        self.logs.compact()
        contexts = {TOPICS.components: context_of(policy, replay=limits)}
        task = restore(self.logs, contexts, [INPUT])[INPUT]
        task.partition.counts.received = task.counts.held
        self.story.task = task
        return self

    @property
    def rows(self) -> list[bytes]:
        self.logs.compact()
        changelog = Tp(TOPICS.groups_changelog, 0)
        return [record.value_ for record in self.logs.written if record.tp == changelog and record.value_ is not None]

    @property
    def values_held(self) -> list[str | None]:
        """Of the group `a`: what stands in the values' place, None for a digest."""
        held = [decode_component(body) for body in self.story.task.groups[b"a"].in_order()]
        return [None if each.reference is not None else (each.value or b"").decode() for each in held]


def test_neither_memory_nor_changelog_has_a_value_and_limits_count_it_all_the_same_w117_w115() -> None:
    script = [c(number, value=LONG) for number in range(1, 11)]
    by_reference, whole = (
        WorkerLife(policy_of(shape=shape)).send(*script) for shape in (Shape.REFERENCE, Shape.ENVELOPE)
    )
    assert sum(map(len, by_reference.rows)) < 200 * 10 < sum(map(len, whole.rows)) / 10
    assert by_reference.story.task.held_bytes < 200 * 10
    assert by_reference.values_held == [None] * 10
    one, other = (life.story.task.groups[b"a"].bytes for life in (by_reference, whole))
    assert one == other
    life = by_reference.send(c(11, end=True))
    assert (life.story.task.held_bytes, life.story.task.memory_bytes) == (0, 0)
    assert play(*script, **REFERENCE, max_bytes=30_000)[0] == play(*script, max_bytes=30_000)[0]


def test_a_short_value_is_held_as_it_is_w117() -> None:
    short, longer = "x" * SHORT_BYTES, "x" * (SHORT_BYTES + 1)
    assert WorkerLife(policy_of(**REFERENCE)).send(c(1, value=short), c(2, value=longer)).values_held == [short, None]


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("restarts", [False, True])
def test_duplicates_are_told_apart_without_the_first_ones_value_w31_w44(shape: Shape, restarts: bool) -> None:
    policy = policy_of(shape=shape)
    life = WorkerLife(policy).send(c(1, value=LONG, component_id="m"))
    if restarts:
        life.restart(policy)
    again = [
        c(1, value=LONG),
        c(1, value=OTHER),
        c(1, value=LONG + "!"),
        replace(c(1), value=None),
        c(1, value=OTHER, component_id="m"),
    ]
    cases = ["duplicate", "conflict", "conflict", "conflict", "resend"]
    assert life.story.send(*again) == [
        refused(each, DuplicateSequenceNumberError, case) for each, case in zip(again, cases, strict=True)
    ]


@pytest.mark.parametrize("first", [LONG, "x" * 32])
def test_what_comes_after_the_delivery_is_told_apart_as_well_w40(first: str) -> None:
    """A value of 32 bytes is none that stands for another."""
    options = REFERENCE | {"duplicate_policy": DuplicatePolicy.DROP_IDENTICAL}
    null = replace(c(2), value=None)
    conflict = c(1, value=OTHER[: len(first)])
    script = [c(1, value=first), null, c(3, value=OTHER, end=True)]
    again: list[Step] = [c(1, value=first), null, c(3, value=OTHER), conflict]
    assert play(*script, *again, **options) == [
        unit(1, 2, 3),
        refused(conflict, DuplicateSequenceNumberError, "conflict"),
    ]


GIVEN_UP: dict[str, tuple[dict[str, Any], list[Step]]] = {
    "expired": (REDIRECT, [clock(11)]),
    "a component expired": (REDIRECT, [c(4, value=LONG, expires_at=3), clock(5)]),
    "cancelled": ({}, [told("cancel", why="asked")]),
    "removed": ({}, [told("remove", seq=2, why="wrong"), c(2, value=LONG), told("cancel", why="asked")]),
    "failed": ({"violation_policy": ViolationPolicy.FAIL_GROUP}, [c(1, value=OTHER)]),
    "too large": ({"max_bytes": 9_000}, [c(4, value=LONG)]),
    "another digest": ({}, [c(4, value=LONG, end=True, digest=digest_of("no"))]),
}


@pytest.mark.parametrize("why", GIVEN_UP)
@pytest.mark.parametrize("restarts", [None, NO_REPLAY, WIDE])
def test_what_is_given_up_has_key_value_and_headers_byte_for_byte_w80_w117(
    why: str, restarts: ReplayLimits | None
) -> None:
    """The same records in the same order as where values are held, short and long ones mixed."""
    options, end = GIVEN_UP[why]
    script: list[Step] = [
        c(3, value=LONG, key=b"k"),
        c(1, value="short", user=[("u", "1")]),
        c(2, value=OTHER, user=[("u", None)]),
    ]
    found = []
    for shape in (Shape.REFERENCE, Shape.ENVELOPE):
        policy = policy_of(shape=shape, **options)
        life = WorkerLife(policy, restarts or WIDE).send(*script)
        if restarts is not None:
            life.restart(policy, restarts)
        found.append(errors_of(life.send(*end).story))
    assert found[0] == found[1]
    assert len(found[0]) >= 3
    assert {output.value for output in found[0]} >= {OTHER.encode(), LONG.encode(), b"short"}


class Slow:
    """Port `Contents` that notes how much is asked for at a time."""

    def __init__(self, lying: Story, gone: Sequence[int] = ()) -> None:
        self.lying, self.gone = lying, gone
        self.asked: list[int] = []

    def read(self, components: Sequence[ComponentRecord]) -> Iterator[RawRecord]:
        self.asked.append(sum(each.reference.length for each in components if each.reference is not None))
        assert [each.source.offset for each in components] == sorted(each.source.offset for each in components)
        for record in self.lying.read(components):
            if record.offset() not in self.gone:
                yield record

    def close(self) -> None:
        """Nothing is open."""


def test_no_more_than_a_portion_is_read_before_the_last_one_is_written_w117(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "PORTION_BYTES", 5 * len(LONG))
    numbers = [*range(2, 12), 1]
    played = story(*[c(number, value=LONG) for number in numbers], clock(11), **REFERENCE, **REDIRECT)
    contents = Slow(played)
    outputs = iter(whole_outputs(played.plans[-1], contents))
    for count in range(1, 12):
        assert next(outputs).value == LONG.encode()
        assert len(contents.asked) == (count + 4) // 5
    assert contents.asked == [5 * len(LONG), 5 * len(LONG), len(LONG)]


def test_a_component_that_is_gone_or_another_record_goes_to_errors_without_its_value_and_says_so_w117() -> None:
    script = [c(1, value=LONG), c(2, value=OTHER), c(3, value=LONG)]
    played = story(*script, clock(11), **REFERENCE, **REDIRECT)
    played.lying[2].value_ = OTHER.encode()
    outputs = whole_outputs(played.plans[-1], Slow(played, gone=[0]))
    first, second, third = [output for output in outputs if output.topic == TOPICS.errors]
    told = [dict(each.headers).get("uow-error-value") for each in (first, second, third)]
    assert told == [b"3000 bytes are gone from D.components/0/0", None, b"3000 bytes are gone from D.components/0/2"]
    assert [each.value for each in (first, second, third)] == [None, OTHER.encode(), None]
    assert [each.key for each in (first, second, third)] == [b"a"] * 3
    assert dict(first.headers)["uow-seq"] == b"1"


@pytest.mark.parametrize("on_time", [0, 1])
def test_what_cannot_be_read_back_in_time_stays_where_it_is_w117(on_time: int) -> None:
    played = story(c(2, value=LONG), c(1, value=OTHER), clock(11), **REFERENCE, **REDIRECT)
    looks = iter(range(9))
    first, second, _ = whole_outputs(played.plans[-1], Slow(played), lambda: next(looks) >= on_time)
    assert (first.value, second.value) == (None, LONG.encode() if on_time else None)
    assert dict(first.headers)["uow-error-value"] == b"3000 bytes were not read back in time from D.components/0/1"


def test_what_fits_no_record_with_its_value_is_not_even_read_back_w115() -> None:
    options = REFERENCE | REDIRECT | {"record_limit_bytes": 5_000}
    played = story(c(1, value=LONG * 2), c(2, value=LONG), clock(11), **options)
    large, small = errors_of(played)
    assert (large.key, large.value, small.value) == (None, None, LONG.encode())
    assert b"fit no record: key, value and headers stayed at uow-source" in (
        dict(large.headers)["uow-error-text"] or b""
    )
    assert list(played.plans[-1].external) == [1]


@pytest.mark.parametrize("order", [*permutations((1, 2, 3))])
@pytest.mark.parametrize("limits", [NO_REPLAY, WIDE])
def test_a_digest_is_compared_though_values_stayed_also_after_a_restart_w212(
    order: Sequence[int], limits: ReplayLimits
) -> None:
    policy = policy_of(**REFERENCE)
    for digest, outcome in ((digest_of(LONG, "short", OTHER), "complete"), (digest_of(LONG, "short", LONG), "failed")):
        sent = {1: c(1, value=LONG), 2: c(2, value="short"), 3: c(3, value=OTHER, end=True, digest=digest)}
        life = WorkerLife(policy, limits).send(sent[order[0]], sent[order[1]])
        life.restart(policy, limits).send(sent[order[2]])
        made = life.story.unit_headers or [dict(errors_of(life.story)[0].headers)]
        assert made[0].get("uow-outcome", made[0].get("uow-failure-reason")) == outcome.encode()


def test_rows_tell_a_worker_that_knows_nothing_of_it_to_keep_away_w117() -> None:
    assert all(
        row.startswith(ROW_WITHOUT_VALUE) for row in WorkerLife(policy_of(**REFERENCE)).send(c(1, value=LONG)).rows
    )
    assert all(row.startswith(ROW_HEADER) for row in WorkerLife(policy_of()).send(c(1, value=LONG)).rows)


@pytest.mark.parametrize("limits", [NO_REPLAY, WIDE])
@pytest.mark.parametrize("before", [Shape.ENVELOPE, Shape.REFERENCE])
@pytest.mark.parametrize("end", ["complete", "expired"])
def test_rows_with_and_without_values_stand_side_by_side_when_the_shape_changes_w117(
    limits: ReplayLimits, before: Shape, end: str
) -> None:
    """As those of an older version, and back; what was held without its value is delivered by reference under any shape."""
    one, other = (policy_of(shape=shape, **REDIRECT) for shape in (before, _other(before)))
    life = WorkerLife(one).send(c(1, value=LONG))
    life.restart(other, limits).send(c(3, value=OTHER, end=True))
    life.restart(one, limits).restart(other)
    by_value = [LONG, None] if before is Shape.ENVELOPE else [None, OTHER]
    assert life.values_held == by_value
    assert life.story.task.held_bytes == sum(map(len, life.story.task.groups[b"a"].held.values()))
    life.send(c(2, value=LONG) if end == "complete" else clock(11))
    assert (life.rows, life.story.task.held_bytes, life.story.task.rows) == ([], 0, 0)
    if end == "expired":
        assert [output.value for output in errors_of(life.story)] == [LONG.encode(), OTHER.encode()]
        return
    (made,) = life.story.units
    assert [each.reference is not None for each in made.components] == [True] * 3
    assert made.bytes == story(c(1, value=LONG), c(2, value=LONG), c(3, value=OTHER, end=True)).units[0].bytes


def _other(shape: Shape) -> Shape:
    return Shape.REFERENCE if shape is Shape.ENVELOPE else Shape.ENVELOPE


def test_a_group_of_which_some_is_held_by_reference_goes_on_under_another_shape_w117() -> None:
    """What comes later has its value in the row, beside rows that have none; all of it is told apart by the next restart."""
    envelope = policy_of()
    life = WorkerLife(policy_of(**REFERENCE)).send(c(1, value=LONG)).restart(envelope).send(c(2, value=OTHER))
    life.restart(envelope)
    assert life.values_held == [None, OTHER]
    assert life.story.send(told("remove", seq=1, why="wrong")) != []
    assert life.story.task.groups[b"a"].external_bytes == 0
    assert life.story.task.groups[b"a"].bytes == life.story.task.held_bytes


def test_replay_bounds_count_values_that_stay_since_a_restart_reads_them_w117() -> None:
    limits = ReplayLimits(1_000_000, 5_000, 1 << 40)
    policy = policy_of(**REFERENCE)
    life = WorkerLife(policy, limits)
    for number in (1, 2, 3):
        life.send(c(1, id=f"g{number}", value=LONG))
    assert [is_replayable(group) for group in life.story.task.groups.values()] == [False, True, True]
    life.restart(policy, limits).send(c(1, id="g4", value=LONG))
    assert [is_replayable(life.story.task.groups[each]) for each in (b"g1", b"g2", b"g4")] == [False, False, True]


def test_a_component_removed_from_among_values_with_their_marks_inside_leaves_the_rest_as_it_was_w24_w76() -> None:
    def marked(seq: int, **headers: object) -> Sent:
        value = f'{{"uow-id": "a", "uow-seq": {seq}, "more": "{"x" * 80}"}}'.encode()
        return Sent([(f"uow-{name}", str(said).encode()) for name, said in headers.items()], value, b"a")

    options = {"field_source": FieldSource.VALUE}
    for shape in (Shape.REFERENCE, Shape.ENVELOPE):
        played = story(marked(1), marked(2, count=3), told("remove", seq=1, why="wrong"), shape=shape, **options)
        assert played.task.groups[b"a"].end == 3


def test_doubt_while_values_are_read_back_reaches_whoever_writes_w117() -> None:
    class Silent(Slow):
        def read(self, components: Sequence[ComponentRecord]) -> Iterator[RawRecord]:
            raise Doubt("nobody answers")

    played = story(c(1, value=LONG), clock(11), **REFERENCE, **REDIRECT)
    with pytest.raises(Doubt):
        list(whole_outputs(played.plans[-1], Silent(played)))
