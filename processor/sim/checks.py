"""The checks after every commit, and at the end of a run.

**The oracle.** The committed ledger of a partition determines the rest: which records each poll took, and when deadlines were applied. So one task
per partition, which never fails, follows the committed ledger: it gets the records that the ledger says were read, and ticks at the ledger's
clock. Every committed transaction must equal the oracle's: the same outputs in the same order, the same closed groups, the same offsets not
held. So any number of workers with faults must have the same effect as one worker without.

Beside the oracle, checks that share no code with the engine's rules: positions never go back and join without gap or overlap; rows and
outputs never move without positions; a unit is whole, in order, and delivered once; no input record is delivered or refused twice; no
deadline passes while records wait that came before it (W-82). The state that the logs hold is the oracle's state, and so is the live one.

Belongs here: the checks. Does not belong here: faults, and the workers that are run (`simulation`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from uow.processor.core.gathered import NEVER
from uow.processor.core.plan_size import UNBOUNDED
from uow.processor.engine.batch import Task
from uow.processor.engine.context import TaskContext
from uow.processor.engine.external_values import whole_outputs
from uow.processor.engine.group_storage import has_group_row
from uow.processor.engine.ports import (
    Committed,
    Plan,
    RawRecord,
    Stretch,
    Tp,
)
from uow.processor.engine.replayable import NO_REPLAY, ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.processor.sim.call_traffic import NOTICES
from uow.processor.sim.router_checks import RouterChecks
from uow.processor.sim.router_traffic import INPUT
from uow.processor.sim.rule_traffic import SimRules
from uow.processor.sim.simulated_kafka import Broker, Phase, SimulatedTransaction, State, StoredRecord
from uow.processor.sim.simulated_routers import SimRows
from uow.processor.sim.traffic import LANES, lane_of, order_key_of
from uow.processor.sim.witness import Violation, Witness, require
from uow.schemas import codec
from uow.schemas.component import decode_component
from uow.schemas.records import (
    Answer,
    ComponentRecord,
    LedgerRecord,
    Source,
    Unit,
    UnitOutcome,
)
from uow.topics import headers as names
from uow.topics.commands import KIND_ANSWER, Verb
from uow.topics.grouping import RuleTable
from uow.topics.partitioner import partition_for
from uow.topics.path_map import PARTITION, PathMap
from uow.topics.policies import NEVER_MS, DestinationPolicy, LatePolicy
from uow.topics.runs import Run, position_of, unit_of

_NOT_CANCELLED = ("closed already", "belongs to partition", "a repeated command", "cannot be read", "dry run")
"""Parts of the answers to a cancel that closes nothing."""


def state_of(task: PartitionTask, *, by_idle: bool) -> dict[str, Any]:
    """Everything about a partition that may bear on what it does next."""
    partition = task.partition
    return {
        "position": partition.position,
        "command position": partition.command_position,
        "commands": dict(partition.commands.at_by_id),
        "clock": partition.clock,
        "held bytes": partition.held_bytes,
        "manifest bytes": partition.manifest_bytes,
        "closed": dict(partition.closed.by_id),
        "kept": [
            (one.group.held, one.group.end, one.closed) for key, one in partition.kept.items() if partition.kept_of(key)
        ],
        "credits": set(partition.credits),
        "live": {key: row.rule for key, row in partition.live.items()},
        "waiting": {rule: [(one.id, one.generation) for one in some] for rule, some in partition.waiting.items()},
        "groups": {
            group_id: (
                group.generation,
                group.opened_at,
                group.last_at if by_idle and group.ruled is None else None,  # `Gathered` has that of a group by rule
                group.end,
                group.marked,
                group.highest,
                group.held,
                group.bytes,
                group.external_bytes,
                group.expires_at,
                group.deliver_at,
                group.special,
                group.declared_end,
                group.waived,
                group.waived_held,
                group.extended,
                group.ruled and group.ruled.state,
                has_group_row(group),
            )
            for group_id, group in partition.groups.items()
        },
    }


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The differences of two states, in words."""
    return "; ".join(f"{key}: {one[key]!r} against {other[key]!r}" for key in one if one[key] != other[key])


class DecidedReader:
    """Port `LogReader` on what is decided, whether or not its markers have arrived; without what `but` is deciding just now."""

    def __init__(self, broker: Broker, positions: Mapping[Tp, Committed], but: str = "") -> None:
        self._broker, self._positions, self._but = broker, positions, but

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        return {tp: self._positions.get(tp, Committed(None, "")) for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return {tp: (self._broker.log(tp).start, self._broker.log(tp).end) for tp in tps}

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, (start, end) in ranges.items():
            rows = [
                record
                for record in self._broker.log(tp).records
                if start <= record.offset() < end and self.is_decided(record)
            ]
            if rows:
                yield tp, rows

    def is_decided(self, record: StoredRecord) -> bool:
        """True if it is committed, or will be as soon as a marker arrives."""
        if record.state is not State.OPEN:
            return record.state is State.COMMITTED
        if record.owner == self._but:
            return False
        owner = self._broker.transactions.get(record.owner)
        return owner is not None and owner.phase is Phase.ENDING and owner.outcome is State.COMMITTED


class DecidedContents:
    """Port `Contents`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def read(self, components: Sequence[ComponentRecord]) -> Iterator[StoredRecord]:
        for source in [each.source for each in components]:
            yield from self._broker.log(Tp(source.topic, source.partition)).visible(source.offset, source.offset + 1)

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> Collection[int]:
        return ()  # in memory all headers are shown

    def close(self) -> None:
        """Nothing is open."""


class RecordedPaths(PathMap):
    """Path routing as a worker saw it when it made the plan that is judged; it ends no placements.

    Attributes:
        placed: Partition by id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.placed: Mapping[bytes, int | None] = {}

    def get(self, group_id: bytes) -> int | None:
        return self.placed.get(group_id)


def _without_value(row: Any) -> Any:
    """The record that a worker writes in place of this one if it had no time to read its value back (W-117)."""
    key, value, headers = row
    text = b"%d bytes were not read back in time from %b" % (len(value or b""), dict(headers).get(names.SOURCE, b""))
    return key, None, [*headers, (names.ERROR_VALUE, text)]


class _Planned(NamedTuple):
    """The conditions under which a worker made a plan.

    The plan is identified by the object that is its ledger record: another worker of the same name, under another policy, may have made an equal one.

    Attributes:
        ledger: That object; kept, so that no other gets its identity.
        context: The context under which the oracle judges it.
        placed: Under path routing: the partition of each id, as the worker knew it.
        at: The simulated time.
        is_cut: True if the worker had to leave something for its next plan.
        latest: The latest append time that the worker believed.
        is_paused: True if its partition is paused because memory is short, so that commands do not wait.
        limits: The replay bounds of the worker.
        asked_at: Of a tick: the time that it was for.
        settled: The same: the moment to which groups by rule were looked at.
        awaits_rule: True if it ends before a record whose row was not known.
    """

    ledger: bytes
    context: TaskContext
    placed: Mapping[bytes, int | None]
    at: float
    is_cut: bool
    latest: int
    is_paused: bool
    limits: ReplayLimits
    asked_at: int = 0
    settled: int | None = None
    awaits_rule: bool = False


class Checker:
    """Judges one run.

    Args:
        broker: The simulated brokers.
        context: Context of the destination.
        strict_clocks: True if all clocks of the run agree, so that W-82 can be judged.
        strict_order: True if append times follow the order in which records came.
        latest_ms: Returns the latest time that a partition's clock may have; None in runs that set the workers' clocks.

    Attributes:
        lost: Partitions whose state was destroyed, each with the words in which a restore must refuse it.
    """

    def __init__(
        self,
        broker: Broker,
        context: TaskContext,
        *,
        strict_clocks: bool,
        strict_order: bool,
        latest_ms: Callable[[], int] | None,
    ) -> None:
        self.recorded, self.truth, self._true_to = RecordedPaths(), PathMap(), 0
        self.broker, self.context = broker, self._judging(context)
        self.topics = context.topics
        self._units = {self.topics.units, *LANES.values()}
        self._witness = Witness(broker, self.topics)
        self.oracle: dict[Tp, PartitionTask] = {}
        self.positions: dict[Tp, Committed] = {}
        self.newest: dict[Tp, bytes] = {}
        self.lost: dict[Tp, str] = {}
        self.commits = 0
        self.units = 0
        self.corrections = 0
        self._strict_clocks, self._strict_order, self._latest_ms = strict_clocks, strict_order, latest_ms
        self._asked: dict[tuple[Tp, int], float] = {}
        self._planned: dict[int, _Planned] = {}
        self._received: Counter[Tp] = Counter()
        self._forgetful = self._reopens = False
        self._cancelled: set[str] = set()
        self._delivered: set[tuple[bytes, bytes]] = set()
        self._sources: Counter[bytes] = Counter()
        self._partial: dict[bytes, set[bytes]] = {}
        self._obeyed: set[tuple[str, int | None]] = set()
        self._answered: Counter[Tp] = Counter()
        self.commands = self.notices = 0
        self._opened_last: dict[tuple[Tp, bytes], int] = {}
        self.routers: RouterChecks | None = None

    def route(self, routers: RouterChecks, rules: RuleTable) -> None:
        """There are routers in the run, whose rows are these."""
        self.routers, self.context = routers, replace(self.context, rules=rules)

    def task(self, tp: Tp) -> PartitionTask:
        """The oracle's task of a partition."""
        if tp not in self.oracle:
            self.oracle[tp] = PartitionTask(tp, self.context)
        return self.oracle[tp]

    def _judging(self, context: TaskContext) -> TaskContext:
        """The context under which the oracle judges a worker with this context."""
        rules = context.rules.whole() if isinstance(context.rules, SimRules | SimRows) else context.rules
        return replace(context, replay=NO_REPLAY, rules=rules, paths=None if context.paths is None else self.recorded)

    def on_asked(self, tp: Tp, asked_at: int) -> None:
        """A worker asks for an end offset. If its clock is put back it may do so twice at the same time."""
        self._asked.setdefault((tp, asked_at), self.broker.scheduler.now)

    def on_plan(
        self,
        plan: Plan,
        context: TaskContext,
        latest: int,
        *,
        is_paused: bool,
        asked_at: int = 0,
        settled: int | None = None,
    ) -> None:
        """A worker has made a plan under this context, and has believed no append time after `latest`; perhaps for a paused partition.

        `asked_at` and `settled` are those of a tick (`Batch`).
        """
        if plan.ledger is not None:
            paths = context.paths
            placed = {} if paths is None else {each: paths.get(each) for each in paths}
            self._planned[id(plan.ledger)] = _Planned(
                plan.ledger,
                self._judging(context),
                placed,
                self.broker.scheduler.now,
                plan.is_cut and plan.awaits_rule is None,
                latest,
                is_paused,
                context.replay,
                asked_at,
                settled,
                plan.awaits_rule is not None,
            )

    def _under(self, context: TaskContext, tp: Tp, transactional_id: str) -> PartitionTask:
        """The oracle's task under the policy of the worker that commits. If that is another one than before: as after a restart under it."""
        task = self.task(tp)
        policy = context.policy
        self._forgetful |= policy.closed_retention_ms < 1_000_000 or policy.closed_max_groups < 1_000
        self._reopens |= policy.late_policy is LatePolicy.REOPEN
        if policy == task.context.policy:
            return task
        reader = DecidedReader(self.broker, self.positions, transactional_id)
        self._compare_states(tp, self._restored(reader, tp, task.context), "restored")
        self._received[tp] += task.counts.received
        task = self.oracle[tp] = self._restored(reader, tp, context)
        self._received[tp] -= task.counts.received
        return task

    def _restored(self, reader: DecidedReader, tp: Tp, context: TaskContext) -> PartitionTask:
        return restore(reader, {self.topics.components: context}, [tp])[tp]

    # -- a commit is decided

    def on_commit(self, transaction: SimulatedTransaction) -> None:
        """Judges one transaction of a worker, or a router."""
        self.commits += 1
        if self.routers is not None and any(tp.topic == INPUT for tp in transaction.offsets):
            self.routers.on_commit(transaction)
        else:
            self._on_commit_of_worker(transaction)

    def _on_commit_of_worker(self, transaction: SimulatedTransaction) -> None:
        ledgers: list[tuple[Tp, bytes]] = []
        actual: dict[Tp, list[Any]] = {}
        internal = (self.topics.groups_changelog, self.topics.closed_changelog)
        for where, record in transaction.written:
            if where.topic == self.topics.closed_changelog:
                ledgers.append((Tp(self.topics.components, where.partition), record.value() or b""))
            elif where.topic not in (*internal, self.topics.path_map):
                actual.setdefault(where, []).append((record.key(), record.value(), record.headers() or []))
        touched = {tp for tp, _ in ledgers} | {
            Tp(self.topics.components, where.partition) for where, _ in transaction.written if where.topic in internal
        }
        require(
            {*touched, *map(self._commands, touched)} == set(transaction.offsets),
            f"a transaction touches {sorted(touched)} and moves the positions of {sorted(transaction.offsets)} (ER-02)",
        )
        expected: dict[Tp, list[Any]] = {}
        for tp, value in ledgers:
            for output in self._follow(tp, value, transaction):
                number = output.partition
                if number < 0:
                    number = partition_for(output.key or b"", self.broker.settings.partitions)
                expected.setdefault(Tp(output.topic, number), []).append((output.key, output.value, output.headers))
        now, most_ms = self.broker.scheduler.now, self.broker.settings.transaction_ms / 2
        is_slow = any(now - self._planned[id(value)].at > most_ms for _, value in ledgers)
        for where in sorted({*actual, *expected}):
            found, wanted = actual.get(where, []), expected.get(where, [])
            if is_slow and where.topic == self.topics.errors:
                wanted = [late if (late := _without_value(row)) in found else row for row in wanted]
            self._compare(where, found, wanted)
        rows = [
            (where, key, value, dict(headers)) for where, several in actual.items() for key, value, headers in several
        ]
        for row in sorted(
            rows, key=lambda row: int(row[3][names.GENERATION] or 0) if names.SUPERSEDES in row[3] else 0
        ):
            self._look_at(*row)  # routes may send a corrected unit elsewhere than the former one
        self._check_notices(actual)
        self._hear_witness(ledgers, actual)
        if self.context.paths is not None:
            self._check_placements()

    def _check_notices(self, actual: Mapping[Tp, list[Any]]) -> None:
        """With the unit of a call, and once, those services hear of it that are named `b` and are not in it (B-209)."""
        told = Counter(key for where, rows in actual.items() if where.topic == NOTICES for key, _, _ in rows)
        units = [
            (key, value, folders)
            for where, rows in actual.items()
            if where.topic == self.topics.units
            for key, value, headers in rows
            if (folders := dict(headers).get(names.FOLDERS)) is not None
        ]
        for key, value, folders in units:
            held = {component.seq for component in codec.decode_as(Unit, value).components}
            lacking = [at for at, name in enumerate(json.loads(folders), 1) if name == "b" and at not in held]
            expected = Counter(b"%b.%d" % (key, number) for number in lacking)
            found = Counter({each: count for each, count in told.items() if each.startswith(b"%b." % key)})
            require(found == expected, f"{key!r} without {lacking}: the notices are {found}")
        self.notices += told.total()

    def _hear_witness(self, ledgers: Sequence[tuple[Tp, bytes]], actual: Mapping[Tp, list[Any]]) -> None:
        for where, rows in actual.items():
            self._witness.look(where, rows, self._policy(where))
        for tp, value in ledgers:
            said, closed = read_ledger(value)
            self._witness.count(tp, closed, actual, self._policy(tp))
            self._witness.bound(tp, said, self._planned[id(value)].limits)
            is_tick = self._planned[id(value)].settled is not None and said.from_offset == said.to_offset
            if self.routers is not None and is_tick and self._strict_order and self._latest_ms is not None:
                self.routers.on_given_up(tp, said.to_offset, closed)

    def _policy(self, where: Tp) -> DestinationPolicy:
        """The policy of the worker that owns the partition of that number."""
        return self.task(Tp(self.topics.components, where.partition)).context.policy

    def _check_placements(self) -> None:
        """Every open group lies where its id is placed, so no group is in two places (W-105, W-106)."""
        log = self.broker.log(Tp(self.topics.path_map, PARTITION))
        for record in log.visible(self._true_to, log.stable_end):
            self.truth.read(record.key(), record.value(), record.timestamp()[1])
        self._true_to = log.stable_end
        for tp, task in self.oracle.items():
            for group_id in task.groups:
                placed = self.truth.get(group_id)
                require(
                    placed == tp.partition,
                    f"group {group_id!r} is open on {tp.partition}, and placed on {placed} (W-106)",
                )

    def _follow(self, tp: Tp, value: bytes, transaction: SimulatedTransaction) -> list[Any]:
        """Moves the oracle by one ledger record; returns its outputs."""
        position, commands_tp = transaction.offsets[tp], self._commands(tp)
        planned = self._planned[id(value)]
        task = self._under(planned.context, tp, transaction.id)
        task.partition.plan_bytes = task.partition.left_bytes = planned.context.plan_bytes
        said, closed = read_ledger(value)
        require(
            said.from_offset == task.position,
            f"{tp.partition}: the ledger goes on at {said.from_offset}, the position was {task.position}",
        )
        require(
            position.offset == said.to_offset and position.metadata.startswith(f"1;F={said.floor};R="),
            f"{tp.partition}: position {position} beside a ledger record up to {said.to_offset}",
        )
        next_command = transaction.offsets[commands_tp].offset or 0
        require(next_command >= task.command_position, f"{tp.partition}: commands are read again")
        self.positions[tp], self.positions[commands_tp], self.newest[tp] = (
            position,
            transaction.offsets[commands_tp],
            value,
        )
        log = self.broker.log(tp)
        require(log.stable_end >= said.to_offset, f"{tp.partition}: read above the last stable offset")
        self.recorded.placed = planned.placed
        plan: Plan | None = None
        records = log.visible(said.from_offset, said.to_offset)
        commands = self.broker.log(commands_tp).visible(task.command_position, next_command)
        if self._latest_ms is not None:
            require(said.clock <= self._latest_ms(), f"{tp.partition}: its clock says {said.clock}, too far ahead")
        task.believe(planned.latest)
        # a worker has read the rules before it refuses one
        task.partition.rules_read_before = task.partition.commands_known_before = NEVER
        if commands and self._strict_order and not planned.is_paused:
            self._check_waiting(tp, said.to_offset, commands)
        if planned.is_cut:
            plan = self._follow_cut(tp, task, said, planned, records, commands)
        elif records or commands or planned.awaits_rule:
            self._take_all(task, records, commands)
            if planned.awaits_rule:  # there may be a hole in the offsets before that record
                task.partition.position = said.to_offset
            plan = task.process([])
        elif said.clock > task.partition.clock or closed:
            if said.clock > task.partition.clock:
                self._check_tick(tp, task, said, self._asked.get((tp, said.clock)))
            if self.context.paths is not None:  # perhaps nothing was due but the end of a placement
                task.partition.advance(said.clock)
            plan = task.process([]) if self.context.paths is not None else task.tick(said.clock, planned.settled)
            if (
                plan is None and task.partition.policy.late_policy is LatePolicy.AMEND
            ):  # the worker let go of what it kept
                task.partition.advance(said.clock)
                plan = task.process([])
            require(plan is not None, f"{tp.partition}: a tick at {said.clock}, where nothing was due")
        elif planned.asked_at:  # as of a look that records have overtaken: it closes nothing, and may warn
            plan = task.tick(said.clock, planned.settled)
        require(task.command_position == next_command, f"{tp.partition}: commands from {next_command} on are lost")
        if plan is None:
            require(not closed and not said.not_held, f"{tp.partition}: something closed where nothing happened")
            return []
        again, closed_again = read_ledger(plan.ledger or b"")
        one = (said.from_offset, said.to_offset, said.clock, said.not_held, said.commands, closed)
        other = (again.from_offset, again.to_offset, again.clock, again.not_held, again.commands, closed_again)
        require(one == other, f"{tp.partition}: the ledger says {one}, the oracle {other}")
        counts = task.counts
        held = sum(group.record_count for group in task.groups.values())
        accounted = counts.held + counts.joined + counts.duplicate + counts.rejected + counts.passed + counts.ignored
        require(
            counts.received == accounted and counts.open == held, f"{tp.partition}: does not add up: {counts} (W-216)"
        )
        return [*whole_outputs(plan, DecidedContents(self.broker))]

    @staticmethod
    def _take_all(task: PartitionTask, records: Sequence[RawRecord], commands: Sequence[RawRecord]) -> None:
        """The worker had room for all of them: a stale deadline sends a record the long way, which counts for more."""
        task.take(records, commands)
        rest = [each for each in records if each.offset() >= task.position]
        later = [each for each in commands if each.offset() >= task.command_position]
        if task.partition.is_cut and (rest or later):
            task.partition.is_cut, task.partition.left_bytes = False, UNBOUNDED
            task.take(rest, later)

    def _check_waiting(self, tp: Tp, to_offset: int, commands: Sequence[StoredRecord]) -> None:
        """A command waits until what was appended before it is read (W-62, W-203)."""
        log, command_log = self.broker.log(tp), self.broker.log(self._commands(tp))
        unread = [
            log.true_times[record.offset()]
            for record in log.records
            if record.offset() >= to_offset and record.state in (State.COMMITTED, State.OPEN)
        ]
        last = max(command_log.true_times[command.offset()] for command in commands)
        require(
            min(unread, default=last) >= last,
            f"{tp.partition}: a command was decided while a record waited that came before it (W-62)",
        )

    def _follow_cut(
        self,
        tp: Tp,
        task: PartitionTask,
        said: LedgerRecord,
        planned: _Planned,
        records: Sequence[RawRecord],
        commands: Sequence[RawRecord],
    ) -> Plan:
        """The plan was full before the time of the next record, or of a tick, was reached: the clock says how far it came."""
        self._take_all(task, records, commands)
        task.partition.position = said.to_offset
        log = self.broker.log(tp)
        coming = log.visible(said.to_offset, log.stable_end)[:1]
        if said.clock > task.partition.clock and not any(
            said.clock <= each.timestamp()[1] <= planned.latest for each in coming
        ):
            asked = [then for (each, at), then in self._asked.items() if each == tp and at >= said.clock]
            last = max((then for then in asked if then <= planned.at), default=None)
            self._check_tick(tp, task, said, self._asked.get((tp, planned.asked_at), last))
        if task.partition.advance(said.clock) and not records and not commands:
            settled = said.clock if planned.settled is None else min(planned.settled, said.clock)
            task.partition.advance_rules(settled)
        return task.process([])

    def _check_tick(self, tp: Tp, task: PartitionTask, said: LedgerRecord, asked: float | None) -> None:
        """Nothing expires because of unread backlog (W-82)."""
        if not self._strict_clocks:
            return
        require(asked is not None, f"{tp.partition}: a tick at {said.clock}, which nobody asked for")
        for where, position in (tp, task.position), (self._commands(tp), task.command_position):
            log = self.broker.log(where)
            for record in log.records:
                if record.offset() >= position and record.state in (State.COMMITTED, State.OPEN):
                    require(
                        log.true_times[record.offset()] >= (asked or 0),
                        f"{where}: a tick at {said.clock} while record {record.offset()} was waiting to be read (W-82)",
                    )

    def _compare(self, where: Tp, actual: list[Any], expected: list[Any]) -> None:
        if where.topic in (
            self.topics.rejected,
            self.topics.components,
            NOTICES,
        ):  # several partitions write here: no order among them
            actual, expected = sorted(actual, key=repr), sorted(expected, key=repr)
        if actual == expected:
            return
        lacking = [row for row in expected if row not in actual]
        spare = [row for row in actual if row not in expected]
        raise Violation(f"{where.topic}/{where.partition}: lacking {lacking}, too many {spare}, or another order")

    def _look_at(self, where: Tp, key: bytes | None, value: bytes | None, headers: dict[str, Any]) -> None:
        """A unit is whole, in order and delivered once; a source is delivered or refused once."""
        if where.topic == self.topics.outcomes and headers[names.KIND] == KIND_ANSWER:
            self._answer(where, headers[names.SOURCE], value or b"")
        elif names.ERROR_CLASS in headers:
            self._seen(headers[names.SOURCE])
        elif where.topic in self._units and headers.get(names.KIND) == names.KIND_UNIT and names.UNIT_ID in headers:
            self._check_lane(where, headers)
            begins = (position_of([*headers.items()]) or (1, 1))[0] == 1
            if begins:  # a unit that is forgotten by now may have had the same id
                self._partial.pop(headers[names.UNIT_ID], None)
            if names.POS in headers:
                self._in_unit(headers, [headers[names.SOURCE]])
            else:
                unit = codec.decode_as(Unit, value or b"")
                self._in_unit(headers, [str(component.source).encode() for component in unit.components])
                self._look_at_components(unit, is_ruled=names.RULE in headers)
                if names.RULE not in headers and self.context.paths is not None and self._strict_clocks:
                    self._check_line(where, unit)
            if begins:
                self._once(key or b"", headers[names.GENERATION], is_ruled=names.RULE in headers)

    def _check_lane(self, where: Tp, headers: dict[str, Any]) -> None:
        """A unit is in the topic to which the routes send it, and in no other (W-98, W-100); one by rule in that of its row, here `D.units`."""
        size = int(headers[names.SIZE])
        lane = (
            lane_of(size)
            if names.RULE not in headers
            and self.oracle[Tp(self.topics.components, where.partition)].context.policy.routes
            else None
        )
        require(where.topic == (lane or self.topics.units), f"a unit of {size} components came out in {where} (W-98)")

    def _look_at_components(self, unit: Unit, *, is_ruled: bool) -> None:
        numbers = [component.seq for component in unit.components]
        if unit.outcome is UnitOutcome.COMPLETE and not is_ruled:
            require(numbers == list(range(1, len(numbers) + 1)), f"a unit of {numbers}")
        require(numbers == sorted(set(numbers)), f"a unit in the order {numbers}")
        for component in unit.components:
            available = int(dict(component.headers).get(names.DELIVER_AT) or 0)
            if self._strict_order and self._latest_ms is not None:  # else some clock was ahead
                require(available <= self.broker.now_ms(), f"{component.source} came out before its time (W-08)")

    def _in_unit(self, headers: dict[str, Any], sources: list[bytes]) -> None:
        """A source is in one unit; or in a partial one, and in each that corrects it, which has one more (B-205)."""
        former = headers.get(names.SUPERSEDES)
        require(former is None or former in self._partial, f"{former!r} is corrected, and was not delivered in part")
        earlier = self._partial[former] if former is not None else set()
        own = self._partial.setdefault(headers[names.UNIT_ID], set())
        for source in sources:
            if source not in earlier or source in own:
                self._seen(source)
            own.add(source)
        if len(own) == int(headers[names.SIZE]):
            is_one_more = earlier < own and len(own) == len(earlier) + 1
            require(former is None or is_one_more, f"{headers[names.UNIT_ID]!r} has {own}, and corrects {earlier}")
            if headers[names.OUTCOME] != b"partial":
                del self._partial[headers[names.UNIT_ID]]
            if former is not None:
                self.corrections += 1
                del self._partial[former]

    def _check_line(self, where: Tp, unit: Unit) -> None:
        """Groups of one order key are delivered in the order in which they opened (W-210)."""
        line = order_key_of(unit.id.encode())
        if line:
            first, last = min(each.source.offset for each in unit.components), self._opened_last.get((where, line), 0)
            require(first >= last, f"{where.partition}: {unit.id} opened before what was delivered before it (W-210)")
            self._opened_last[where, line] = first

    def _once(self, key: bytes, generation: bytes, *, is_ruled: bool) -> None:
        self.units += 1
        if not self._forgetful:
            require((key, generation) not in self._delivered, f"unit {(key, generation)} delivered twice")
            require(
                self._reopens or is_ruled or key.decode() not in self._cancelled,
                f"{key!r} was cancelled, and is delivered (W-62)",
            )
        self._delivered.add((key, generation))

    def _check_runs(self, where: Tp) -> None:
        """Records of a unit of shape `consecutive` are neighbours for a `read_committed` reader (W-12)."""
        log = self.broker.log(where)
        run: Run | None = None
        for record in log.visible(log.start, log.end):
            headers, at = record.headers() or [], record.offset()
            if run is None and position_of(headers) is not None:
                run = Run(unit_of(headers, self.context.destination, 0), at)
            if run is not None:
                breach = run.breach(headers)
                require(breach is None, f"{where.partition}/{at}: {breach}")
                run.take(headers, record.key(), record.value(), 0, Source(where.topic, where.partition, at))
                run = None if run.is_whole else run
        require(run is None, f"{where.partition}: the last unit is not whole")

    def _answer(self, where: Tp, source: bytes, value: bytes) -> None:
        """A command is answered once, and done once however often it was sent (W-203)."""
        self._seen(source)
        answer = codec.decode_as(Answer, value)
        self.commands += 1
        self._answered[self._commands(where)] += 1
        if answer.done and not self._forgetful:
            everywhere = answer.verb == Verb.RULE_CHANGE  # one to every partition
            obeyed = answer.command_id, where.partition if everywhere else None
            require(obeyed not in self._obeyed, f"command {answer.command_id} was done twice")
            self._obeyed.add(obeyed)
        if answer.verb == Verb.CANCEL:
            excused = any(why in answer.text for why in _NOT_CANCELLED)
            require(answer.done or excused, f"a cancel of {answer.id} is lost: {answer.text} (W-62)")
            if answer.done:
                self._cancelled.add(answer.id)

    def _commands(self, tp: Tp) -> Tp:
        return Tp(self.topics.commands, tp.partition)

    def _seen(self, source: bytes) -> None:
        self._sources[source] += 1
        require(self._sources[source] == 1, f"{source.decode()} came out twice")

    # -- states

    def compare_live(self, plan: Plan, task: Task) -> None:
        """A worker's state right after its commit."""
        if not isinstance(task, PartitionTask) or self.newest.get(plan.tp) is not plan.ledger:
            return
        self._compare_states(plan.tp, task, "live")

    def compare_restored(self) -> None:
        """The state that a restore would find now."""
        reader = DecidedReader(self.broker, self.positions)
        for tp in sorted(self.oracle.keys() - self.lost):
            self._compare_states(tp, self._restored(reader, tp, self.task(tp).context), "restored")

    def _compare_states(self, tp: Tp, task: PartitionTask, which: str) -> None:
        by_idle = task.context.policy.idle_expiration_ms != NEVER_MS
        one, other = state_of(task, by_idle=by_idle), state_of(self.task(tp), by_idle=by_idle)
        require(one == other, f"{tp.partition}: the {which} state is not the oracle's: {difference(one, other)}")

    # -- retention

    def floor(self, tp: Tp) -> int:
        """The offset below which no restore reads input any more."""
        return read_ledger(self.newest[tp])[0].floor if tp in self.newest else 0

    def wanted(self, tp: Tp) -> int:
        """The offset below which no input is read any more, not even for the values of components that are given up."""
        bodies = [
            body for group in self.task(tp).groups.values() if group.external_bytes for body in group.held.values()
        ]
        return min([self.floor(tp), *(decode_component(body).source.offset for body in bodies)])

    def cut_ledger(self, tp: Tp) -> None:
        """Retention takes ledger records that no restore needs: below the floor, without a command or closed group that is remembered or still queued.

        A queued one, of an id that has closed again since, still decides how long those behind it are remembered.
        """
        log = self.broker.log(Tp(self.topics.closed_changelog, tp.partition))
        if tp not in self.newest or tp in self.lost:
            return
        floor, in_line = self.floor(tp), {*self.task(tp).partition.closed.order}
        commands = self.task(tp).partition.commands
        rows = log.visible(log.start, log.stable_end)
        for record in rows[:-1]:
            said, closed = read_ledger(record.value() or b"")
            if said.to_offset > floor or in_line.intersection(closed):
                break
            if any(command.id in commands for command in said.commands):
                break
            log.cut(record.offset() + 1)

    # -- the end

    def lag(self, tp: Tp) -> int:
        """The number of records that wait to be read; none in a partition that is lost for good."""
        if Tp(self.topics.components, tp.partition) in self.lost:
            return 0
        log = self.broker.log(tp)
        position = self.positions.get(tp, Committed(0, "")).offset or 0
        return len(log.visible(position, log.end))

    def at_the_end(self) -> None:
        """Checks that nothing is in flight, and nothing forgotten."""
        if self.context.paths is not None:
            self._check_placements()
        require(not any(log.open for log in self.broker.logs.values()), "a transaction is open after the end")
        for tp, position in self.positions.items():
            if Tp(self.topics.components, tp.partition) in self.lost:
                continue
            require(
                self.broker.committed[tp] == position, f"{tp.partition}: the committed position is not the decided one"
            )
            log = self.broker.log(tp)
            received = log.committed_before_start + len(log.visible(log.start, position.offset or 0))
            if tp.topic == self.topics.commands:
                require(self._answered[tp] == received, f"{tp}: {received} commands have {self._answered[tp]} answers")
                continue
            counted = self._received[tp] + self.task(tp).counts.received
            require(counted == received, f"{tp.partition}: received {counted} of {received}")
        self.compare_restored()
        if self.routers is not None:
            self.routers.at_the_end()
        for where in self.broker.logs:
            if where.topic in self._units:
                self._check_runs(where)
