"""Streams of records that nobody would send and everybody sends: one generator for Hypothesis and for long seeded runs.

A stream is a list of events: a record, `Tick` (the partition is read to its end at a wall clock), or `Again` (the last records come once
more, as after a restart). Few ids and small numbers, so that every line of the decision table meets every state of a group.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.core.script import T0, TOPICS, check_counts, context_of, policy_of, row_by_row
from tests.fake_record import FakeRecord
from uow.processor.engine.group_storage import has_group_row, rows_of
from uow.processor.engine.ports import Plan, Tp
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.schemas.component import BLOCK_BITS
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    FieldSource,
    Fingerprints,
    LatePolicy,
    OutcomesPolicy,
    Oversize,
    Shape,
    ViolationPolicy,
)
from uow.topics.routes import Route, RouteMatching
from uow.topics.selector import Selector

PARTITIONS = 2
TP = Tp(TOPICS.components, 0)


@dataclass(frozen=True, slots=True)
class Tick:
    now_ms: int


@dataclass(frozen=True, slots=True)
class Again:
    count: int


Event = FakeRecord | Tick | Again


def draw_policy(rnd: Random) -> DestinationPolicy:
    """Any policy of a destination that forms units; limits small enough to matter."""
    aside = copy.copy(rnd)  # dice of their own: what a seed drew before stays as it was
    return policy_of(
        incomplete_expiration_ms=rnd.choice([-1, -1, 40, 200]),
        idle_expiration_ms=rnd.choice([-1, -1, 30, 100]),
        expiration_policy=rnd.choice(list(ExpirationPolicy)),
        duplicate_policy=rnd.choice(list(DuplicatePolicy)),
        violation_policy=rnd.choice([ViolationPolicy.REJECT_COMPONENT, *ViolationPolicy]),
        late_policy=rnd.choice([LatePolicy.REJECT, LatePolicy.REOPEN]),
        closed_retention_ms=rnd.choice([3_600_000, 3_600_000, 100, 20]),
        closed_max_groups=rnd.choice([1_000_000, 1_000_000, 3, 1]),
        max_components=rnd.choice([1_000_000, 1_000_000, 1_000_000, 4, 2]),
        max_bytes=rnd.choice([67_108_864, 67_108_864, 67_108_864, 400, 150]),
        outcomes=rnd.choice(list(OutcomesPolicy)),
        accept_aliases=frozenset(family for family in AliasFamily if rnd.random() < 0.15),
        expiration_log_headers=("user",),
        routes=rnd.choice([(), LANES]),
        route_matching=rnd.choice(list(RouteMatching)),
        field_source=rnd.choice(list(FieldSource)),
        fingerprints=aside.choice(list(Fingerprints)),
        shape=aside.choice([Shape.ENVELOPE, Shape.ENVELOPE, Shape.REFERENCE]),
        warn_at_percent=aside.choice([0, 0, 50]),
        oversize=aside.choice([Oversize.FAIL, *Oversize]),
        max_run_components=aside.choice([100_000, 3]),
    )


LANES = Route(Selector("uow-size > 1"), "large"), Route(Selector("user IS NOT NULL OR uow-priority >= 5"), "marked")


def _as_fields(rnd: Random, headers: Any) -> tuple[Any, bytes | None]:
    """The same marks as fields of a JSON value, without their headers: a component where `field_source` is `value`."""
    fields = [pair for pair in headers if pair[0] in ("uow-id", "uow-seq", "uow-end") and (pair[1] or b"").isascii()]
    said = ", ".join(f'"{name}": "{(raw or b"").decode()}"' for name, raw in fields)
    padding = " " * rnd.choice([0, 80])
    return [pair for pair in headers if pair not in fields] or rnd.choice([None, []]), f"{{{said}{padding}}}".encode()


_FAULTS: Sequence[tuple[str, bytes | None]] = (
    ("uow-seq", b"x"),
    ("uow-seq", b""),
    ("uow-seq", None),
    ("uow-seq", b"0"),
    ("uow-end", b"yes"),
    ("uow-end", None),
    ("uow-count", b"many"),
    ("uow-id", b""),
    ("uow-id", b"\xff\xfe"),
    ("uow-id", None),
    ("uow-expires-at", b"soon"),
    ("uow-priority", b"11"),
    ("uow-digest", b"md5"),
    ("uoo-name", b"order"),
    ("uow-deliver-at", b"-3"),
)
_ALIASES = ("JMS_BEA_UnitOfWork", "mq-group-id", "JMSXGroupID", "correlationId", "fragment.identifier")


def _headers(rnd: Random, now: int, ids: Sequence[bytes]) -> Any:  # noqa: C901  # a list of dice, no logic
    odd = rnd.random()
    if odd < 0.06:
        return rnd.choice([None, [], [("x", b"1")], [("uow-seq", b"1")], [("uow-id", b"a"), ("uow-kind", b"unit")]])
    if odd < 0.07:
        return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    seq = rnd.choice([1, 1, 1, 2, 2, 2, 3, 3, rnd.randrange(1, 8), 2_147_483_647 if rnd.random() < 0.1 else 2])
    end = rnd.random() * (1 if seq in {2, 3} else 2)
    group_id = rnd.choice(ids)
    headers: list[tuple[str, bytes | None]] = [("uow-id", group_id), ("uow-seq", b"%d" % seq)]
    if end < 0.3:
        headers.append(("uow-end", rnd.choice([b"true", b"true", b"TRUE", b"tRue"])))
    elif end < 0.8:
        headers.append(("uow-end", rnd.choice([b"false", b"False", b"faLse"])))
    if rnd.random() < 0.3:
        headers.append(("uow-component-id", rnd.choice([b"m1", b"m2", "é".encode(), b"", None, b"\xff"])))
    if rnd.random() < 0.2:
        headers.append(("user", rnd.choice([b"u", None, b"\xff\x00"])))
    if rnd.random() < 0.15:
        headers.append((rnd.choice(["uow-correlation-id", "uow-type", "uow-user-id", "uow-reply-to"]), b"said"))
    if rnd.random() < 0.25:
        special = rnd.randrange(9)
        if special == 0:
            headers.append(("uow-count", b"%d" % rnd.randrange(1, 7)))
        elif special == 1:
            headers.append(("uow-expires-at", b"%d" % (now + rnd.randrange(-5, 60))))
        elif special == 2:
            headers.append(("uow-deliver-at", b"%d" % (now + rnd.randrange(-5, 60))))
        elif special == 3:
            headers.append(("uow-priority", b"%d" % rnd.randrange(10)))
        elif special == 4:
            headers.append(("uow-delivery-mode", rnd.choice([b"persistent", b"non_persistent", None])))
        elif special == 5:
            headers.append(("uow-rerouted", b"1"))
        elif special == 6:
            headers.append(("uow-digest", b"sha256:" + rnd.choice([b"0", b"F"]) * 64))
        elif special == 7:
            headers.append((rnd.choice(_ALIASES), rnd.choice([group_id, b"other"])))
        else:
            headers.append(("uow-unheard-of", b"x"))
    if rnd.random() < 0.08:
        name, value = rnd.choice(_FAULTS)
        if rnd.random() < 0.5:
            headers = [pair for pair in headers if pair[0] != name]
        headers.append((name, value))
    if rnd.random() < 0.05:
        headers.append(rnd.choice(headers))
    if rnd.random() < 0.03:
        del headers[1]
    if rnd.random() < 0.1:
        rnd.shuffle(headers)
    return headers


def _place_in_component(rnd: Random) -> Any:
    """Headers of a piece (B-124)."""
    said = [("uow-segment-at", rnd.choice([b"0", b"0", b"1", b"1", b"2", b"120", b"", b"x"]))]
    if rnd.random() < 0.5:
        said.append(("uow-segment-end", rnd.choice([b"true", b"true", b"true", b"false", b"no"])))
    return said[rnd.random() < 0.05 :]


def draw_stream(rnd: Random, length: int, ids_count: int = 5) -> list[Event]:
    """A stream of about `length` events, in offset order; offsets have holes, append times mostly rise."""
    named = [b"id-%d" % number for number in range(8 * ids_count + 8)]
    ids = [name for name in named if partition_for(name, PARTITIONS) == TP.partition][:ids_count]
    if rnd.random() < 0.5:
        ids.append(next(name for name in named if partition_for(name, PARTITIONS) != TP.partition))
    events: list[Event] = []
    aside = copy.copy(rnd)  # dice of their own: what a seed drew before stays as it was
    offset, at = rnd.choice((0, (1 << BLOCK_BITS) - 100, (1 << 27) - 100)) + rnd.randrange(0, 300), T0
    for _ in range(length):
        kind = rnd.random()
        if kind < 0.04:
            at += rnd.randrange(0, 120)
            events.append(Tick(at))
            continue
        if kind < 0.06:
            events.append(Again(rnd.randrange(1, 6)))
            continue
        at += rnd.choice([0, 0, 1, 1, 2, 5, 20, 50 if rnd.random() < 0.2 else 0])
        stamped = max(0, at - rnd.choice([3, 30, 300])) if rnd.random() < 0.04 else at
        value = rnd.choice([b"x", b"x", b"y", b"", None, b"long" * 30])
        key = rnd.choice([b"id-1", b"id-1", None, b"", b"key"])
        headers = _headers(rnd, at, ids)
        if isinstance(headers, list) and rnd.random() < 0.08:
            headers, value = _as_fields(rnd, headers)
        if isinstance(headers, list) and aside.random() < 0.2:
            headers = [*headers, *_place_in_component(aside)]
        events.append(FakeRecord(offset, headers, value, key, stamped, TP))
        offset += 1 if rnd.random() < 0.95 else rnd.randrange(2, 5)
    return events


def polls(rnd: Random, events: Sequence[Event], longest: int) -> list[list[FakeRecord] | Tick]:
    """The stream as a worker gets it: records in polls of random length, ticks and repeated records in between."""
    calls: list[list[FakeRecord] | Tick] = []
    batch: list[FakeRecord] = []
    recent: list[FakeRecord] = []

    def flush() -> None:
        nonlocal batch
        if batch:
            calls.append(batch)
            batch = []

    for event in events:
        if isinstance(event, FakeRecord):
            batch.append(event)
            recent.append(event)
            if len(batch) >= rnd.randint(1, longest):
                flush()
            continue
        flush()
        if isinstance(event, Tick):
            calls.append(event)
        elif recent:
            calls.append(recent[-event.count :])
    flush()
    return calls


def call(task: PartitionTask, one: list[FakeRecord] | Tick) -> Plan | None:
    """Hands one call's work to a task; checks that nothing vanishes (W-216)."""
    plan = task.tick(one.now_ms) if isinstance(one, Tick) else task.process(one)
    check_counts(task.counts, task.groups)
    groups = task.groups.values()
    assert task.partition.piece_count == sum(each.record_count - len(each.held) for each in groups)
    assert task.held_bytes == sum(each.bytes - each.external_bytes + each.bytes_in_pieces() for each in groups)
    partition = task.partition
    for line, is_ruled in ((partition.unit_deadlines, False), (partition.rule_deadlines, True)):
        of_line = (group for group in task.groups.values() if (group.ruled is not None) is is_ruled)
        due = min((group.due_at(task.context.policy) for group in of_line), default=1 << 62)
        assert line.due <= due, "a deadline would be missed"
    return plan


def new_task(policy: DestinationPolicy, *, fast_path: bool = True, **more: Any) -> PartitionTask:
    task = PartitionTask(TP, context_of(policy, PARTITIONS, **more))
    return task if fast_path else row_by_row(task)


def groups_of(task: PartitionTask) -> dict[bytes, Any]:
    """What makes up the open groups; `last_at` only where a deadline asks for it, as a restore does: of units of work."""
    idle = task.context.policy.idle_expiration_ms != -1
    return {
        group_id: (
            group.generation,
            group.opened_at,
            group.last_at if idle and group.ruled is None else None,
            group.end,
            group.marked,
            group.highest,
            list(group.held.items()),
            (group.segments and list(group.segments.bodies.items())) or [],
            group.bytes,
            group.external_bytes,
            group.expires_at,
            group.deliver_at,
            group.special,
            group.declared_end,
            group.waived,
            group.waived_held,
            group.extended,
            group.warned_at,
            group.ruled and group.ruled.state,
            has_group_row(group),
            rows_of(group),
        )
        for group_id, group in task.groups.items()
    }


def state_of(task: PartitionTask) -> dict[str, Any]:
    """Everything about a partition that may bear on what it does next."""
    partition = task.partition
    return {
        "groups": groups_of(task),
        "closed": copy.copy(partition.closed.by_id),
        "clock": partition.clock,
        "position": partition.position,
        "command_position": partition.command_position,
        "commands": dict(partition.commands.at_by_id),
        "held_bytes": task.held_bytes,
    }


class JoinedLogs:
    """What plans write into logs, however the stream was cut: the changelog compacted, the ledger joined."""

    def __init__(self) -> None:
        self.log_lines: list[Any] = []
        self.changelog: dict[bytes, bytes] = {}
        self.not_held: list[int] = []
        self.closed: list[Any] = []
        self.commands: list[Any] = []

    def join(self, plan: Plan) -> None:
        self.log_lines += plan.log_lines
        for key, value in plan.changelog:
            if value is None:
                del self.changelog[key]  # a tombstone always has a row to bury
            else:
                self.changelog[key] = value
        if plan.ledger is not None:
            ledger, closed = read_ledger(plan.ledger)
            for skipped in ledger.not_held:
                self.not_held += range(skipped.first, skipped.last + 1)
            self.closed += closed
            self.commands += ledger.commands


class World(JoinedLogs):
    """What plans amount to, however the stream was cut: outputs in order, and their logs."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []
        self.outcomes: list[Any] = []

    def add(self, plan: Plan | None) -> None:
        if plan is None:
            return
        for index, output in enumerate(plan.outputs):
            (self.outcomes if output.topic == TOPICS.outcomes else self.outputs).append(
                (output, plan.external.get(index))
            )
        self.join(plan)

    def seen(self) -> dict[str, Any]:
        """For comparison. An outcome of an id that failed with nothing held stands at the end of its plan, hence the sorting."""
        return {
            "outputs": self.outputs,
            "outcomes": sorted(self.outcomes, key=repr),
            "log_lines": self.log_lines,
            "changelog": self.changelog,
            "not_held": self.not_held,
            "closed": self.closed,
        }
