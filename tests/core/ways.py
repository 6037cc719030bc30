"""The ways in which a stream is played: all must come to the same bytes. Each is a worker's own: batches, cut plans, restarts, replay.

Belongs here: playing a stream, what is compared, and the smallest stream that shows a difference. Does not belong here: drawing one (`drawn`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.core.drawn import COMMANDS, COMPONENTS, PARTITIONS, Event, Latest, Stream, Tick
from tests.core.rule_script import Table
from tests.core.script import TOPICS, RowByRow, check_counts, context_of
from tests.core.streams import JoinedLogs, state_of
from tests.engine.restored_logs import Logs
from tests.fake_record import FakeRecord
from uow.processor.core.partition import Partition
from uow.processor.engine.batch import SLICE, Batch, Work
from uow.processor.engine.ports import Plan
from uow.processor.engine.replayable import NO_REPLAY, ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import read_group_row, read_row
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.conditions import group_policy
from uow.schemas.records import GROUP_ROW, MAX_SEQ, Attributes
from uow.topics.rules import DeliverOrder


@dataclass(frozen=True, slots=True)
class Way:
    """One way to play a stream.

    Attributes:
        name: For people.
        most: Most events of a batch; 0: all between two moments of the clock.
        at_a_time: Records that the task is fed at a time.
        is_whole_table: True if each record goes through the whole decision table.
        plan_bytes: Most that the groups which one plan closes may weigh; None: as usual.
        restarts: How many of a hundred batches a restart follows, and how many are lost and done again.
        limits: How much a restore may replay.
    """

    name: str
    most: int = 0
    at_a_time: int = SLICE
    is_whole_table: bool = False
    plan_bytes: int | None = None
    restarts: int = 0
    limits: ReplayLimits = NO_REPLAY


BULK = Way("bulk")
WAYS = (
    Way("one by one", most=1),
    Way("some at a time", most=7, at_a_time=3),
    Way("by the whole table", most=1, is_whole_table=True),
    Way("restarted after each", most=1, restarts=100),
    Way("restarted now and then", most=9, restarts=30),
    Way("in plans cut at each close", most=11, plan_bytes=0),
    Way("in cut plans", plan_bytes=20_000),
    Way("in plans cut at each close, and restarted", most=5, plan_bytes=0, restarts=40),
    Way("replayed", most=8, restarts=30, limits=ReplayLimits(1_000_000, 1 << 40, 1 << 40)),
    Way("replayed in part", most=3, restarts=20, limits=ReplayLimits(9, 2_000, 100)),
)


class Played(JoinedLogs):
    """What a way of playing a stream came to, however plans were cut.

    Attributes:
        failed_late: Known difference: a unit turned out to fit no record when its plan was made (W-115). What came of its id in the same plan
            was judged as if the unit were delivered; in a plan of its own it is judged as of a failed one. Such a stream is played, and not compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, list[Any]] = defaultdict(list)
        self.state: dict[str, Any] = {}
        self.failed_late = False

    def add(self, plan: Plan) -> None:
        for index, output in enumerate(plan.outputs):
            self.outputs[output.topic].append((output, plan.external.get(index)))
        assert plan.ledger is not None
        self.join(plan)

    def leave_out_positions(self) -> None:
        """Known difference: a unit that left in its turn (B-118) but did not fit into the plan has another position in the ledger. Only a
        replay asks for it, and never of a group by rule."""
        self.closed = [each._replace(before=0) for each in self.closed]
        self.state["closed"] = {name: each._replace(before=0) for name, each in self.state["closed"].items()}

    def parts(self) -> dict[str, Any]:
        """All that is compared, by name."""
        return {
            **{f"outputs to {topic}": outputs for topic, outputs in sorted(self.outputs.items())},
            "log lines": self.log_lines,
            "changelog": {key: _told(key, value) for key, value in self.changelog.items()},
            "not held": self.not_held,
            "closed": self.closed,
            "commands": self.commands,
            **{f"state: {name}": value for name, value in self.state.items()},
        }


def _told(key: bytes, value: bytes) -> Any:
    """What a row of the changelog says. One of a component that says that all its attributes are 0 says the same as one that says none; and
    one of a group by rule need not say the latest version that it took, which a row of its rule says (B-13)."""
    number = int.from_bytes(key[-4:], "big")
    if key[:1] == b"\2" and number == GROUP_ROW:
        group = read_group_row(value)
        return replace(group, rule=(group.rule or "").partition("@")[0])
    if key[:1] not in (b"\1", b"\2") or not 0 < number <= MAX_SEQ:
        return value
    row = read_row(value)
    return replace(row, attributes=None if row.attributes == Attributes() else row.attributes)


class _Worker:
    """Plays one stream in one way, as a worker does: a plan is written before the next batch, and what it left is read again."""

    def __init__(self, stream: Stream, way: Way, rnd: Random) -> None:
        self.way, self.rnd = way, rnd
        self.stream = stream
        self.logs = Logs(COMPONENTS)
        self.played = Played()
        self.latest: dict[str, int] = {}
        self.task = self._started()

    def _started(self) -> PartitionTask:
        """The task of a worker that starts."""
        stream, way = self.stream, self.way
        more: dict[str, Any] = {} if way.plan_bytes is None else {"plan_bytes": way.plan_bytes}
        rows = [group_policy(row, stream.policy) for row in stream.rows]
        context = context_of(
            stream.policy,
            PARTITIONS,
            record_limit_bytes=stream.record_limit_bytes,
            rules=Table(later=rows),
            replay=way.limits,
            **more,
        )
        if self.logs.committed_offset is None:
            task = PartitionTask(COMPONENTS, context)
        else:
            context.rules.catch_up(tuple)
            task = restore(self.logs, {TOPICS.components: context}, [COMPONENTS])[COMPONENTS]
            task.partition.counts.received = task.counts.held
        if way.is_whole_table:
            task.partition.__class__ = RowByRow
        self._watch(task.partition)
        return task

    def _watch(self, partition: Partition) -> None:
        """Takes note of units that fail while they are written."""
        fail_written = partition.fail_written

        def noted(*given: Any) -> None:
            self.played.failed_late = True
            fail_written(*given)

        partition.fail_written = noted  # type: ignore[method-assign]

    def play(self) -> Played:
        for events in self._batches():
            first = events[0]
            if isinstance(first, Latest):
                self.latest = {"latest": first.at_ms}
            elif isinstance(first, Tick):
                self._until_done(Batch(COMPONENTS, Work.TICK, asked_at=first.now_ms, settled=first.settled_ms))
            else:
                records = [each for each in events if isinstance(each, FakeRecord)]
                self.logs.take_input([each for each in records if each.tp == COMPONENTS])
                self._until_done(
                    Batch(
                        COMPONENTS,
                        records=[each for each in records if each.tp == COMPONENTS],
                        commands=[each for each in records if each.tp == COMMANDS],
                        **self.latest,
                    )
                )
        for _ in range(2 * len(self.task.partition.kept)):
            self._until_done(Batch(COMPONENTS))  # lets go of what a full plan kept; no other one needs it
        drained = self.task.drain()
        if drained is not None:
            self._write(drained)
        self.played.state = state_of(self.task)
        if any(row.rule.deliver_order is DeliverOrder.FIRST_ARRIVAL for row in self.stream.rows):
            self.played.leave_out_positions()
        return self.played

    def _batches(self) -> Iterator[list[Event]]:
        """Moments of the clock stand alone."""
        batch: list[Event] = []
        for event in self.stream.events:
            if not isinstance(event, FakeRecord):
                if batch:
                    yield batch
                yield [event]
                batch = []
                continue
            batch.append(event)
            if len(batch) == self.way.most:
                yield batch
                batch = []
        if batch:
            yield batch

    def _until_done(self, batch: Batch) -> None:
        again = batch
        while True:
            records, commands = [*again.records], [*again.commands]
            is_lost = self.rnd.randrange(200) < self.way.restarts
            again.apply(self.task, self.way.at_a_time)
            plan = again.outcome
            assert plan is None or isinstance(plan, Plan)
            if is_lost:  # its transaction failed
                self.task = self._started()
                again = replace(again, records=records, commands=commands, outcome=None)
                if self.way.restarts == 100:
                    again.apply(self.task, self.way.at_a_time)
                    plan = again.outcome
                else:
                    continue
            check_counts(self.task.counts, self.task.groups)
            if plan is None:
                return
            assert isinstance(plan, Plan)
            self._write(plan)
            if plan.awaits_rule is not None:
                self.task.read_rules(records[-1].offset() + 1 if records else 0, tuple)
            elif not plan.is_cut:
                break
            again = replace(
                batch,
                records=[each for each in records if each.offset() >= plan.next_offset],
                commands=[each for each in commands if each.offset() >= plan.next_command],
                outcome=None,
            )
            is_all_read = batch.work is Work.RECORDS and not (again.records or again.commands)
            if is_all_read and self.task.partition.freed and self.rnd.random() < 0.5:  # as a worker that starts does
                again = Batch(COMPONENTS, Work.TICK, asked_at=0, settled=0)
        if self.rnd.randrange(100) < self.way.restarts:
            if self.rnd.random() < 0.2:
                self.logs.compact()
            self.task = self._started()

    def _write(self, plan: Plan) -> None:
        self.played.add(plan)
        self.logs.add(plan)


def play(stream: Stream, way: Way, seed: int = 0) -> Played:
    """Plays a stream in one way; `seed` says where restarts are."""
    return _Worker(stream, way, Random(seed)).play()


def difference(stream: Stream, ways: Sequence[Way] = WAYS) -> str | None:
    """In which way a stream comes to something else than in bulk, and at which part; or how it raises. None: all agree."""
    try:
        in_bulk = play(stream, BULK)
    except Exception as error:  # noqa: BLE001 - whatever it is, the smallest stream that raises it is wanted
        return f"bulk raises {type(error).__name__}"
    expected = in_bulk.parts()
    for way in ways:
        try:
            played = play(stream, way)
        except Exception as error:  # noqa: BLE001 - the same
            return f"{way.name} raises {type(error).__name__}"
        parts = {} if in_bulk.failed_late or played.failed_late else played.parts()
        for name in sorted({*expected, *parts}) if parts else ():
            if parts.get(name) != expected.get(name):
                return f"{way.name}: {name}"
    return None


def smallest(stream: Stream, ways: Sequence[Way] = WAYS) -> Stream:
    """The stream without whatever its difference does without, settings and rows included."""
    found = difference(stream, ways)
    chosen = [way for way in ways if found is not None and found.startswith(way.name)] or ways

    def is_same(other: Stream) -> bool:
        return difference(other, chosen) == found

    size = max(1, len(stream.events) // 2)
    while size:
        at = 0
        while at < len(stream.events):
            shorter = replace(stream, events=stream.events[:at] + stream.events[at + size :])
            if is_same(shorter):
                stream = shorter
            else:
                at += size
        size //= 2
    for row in stream.rows:
        fewer = replace(stream, rows=tuple(each for each in stream.rows if each is not row))
        stream = fewer if is_same(fewer) else stream
    return _plainer(stream, is_same)


def _plainer(stream: Stream, is_same: Any) -> Stream:
    """With as many settings, columns and headers at their defaults as can be."""
    default = type(stream.policy)(handling_policy=stream.policy.handling_policy)
    for name in default.__dataclass_fields__:
        plainer = replace(stream, policy=replace(stream.policy, **{name: getattr(default, name)}))
        stream = plainer if is_same(plainer) else stream
    for index, row in enumerate(stream.rows):
        for part, kind in (("rule", type(row.rule)), ("row", type(row.row))):
            for name, column in kind.__dataclass_fields__.items():
                rows = [*stream.rows]
                own = getattr(rows[index], part)
                if column.default is not column.default_factory:  # it has one
                    rows[index] = replace(rows[index], **{part: replace(own, **{name: column.default})})
                    plainer = replace(stream, rows=tuple(rows))
                    stream = plainer if _can(plainer) and is_same(plainer) else stream
    for index, event in enumerate(stream.events):
        if not isinstance(event, FakeRecord) or not isinstance(event.headers_, list):
            continue
        for pair in [*event.headers_]:
            events = [*stream.events]
            here = events[index]
            assert isinstance(here, FakeRecord)
            events[index] = replace(here, headers_=[each for each in here.headers_ if each is not pair])
            plainer = replace(stream, events=tuple(events))
            stream = plainer if is_same(plainer) else stream
    return stream


def _can(stream: Stream) -> bool:
    return len({row.name for row in stream.rows}) == len(stream.rows)
