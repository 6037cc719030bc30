"""A destination gets more partitions while groups are open: nothing is split, lost or forgotten (W-107)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.core.rule_script import Table, r, row
from tests.core.script import T0, TOPICS, Sent, Told, c, context_of, is_unit, policy_of, told, unit_of
from tests.core.test_by_rule import REMEMBERED
from tests.core.test_by_rule_live import changed
from tests.core.test_by_rule_release import released
from tests.core.test_fan_in import gathering, manifest, reply
from tests.engine.restored_logs import Logs
from tests.engine.test_recycling import recycled
from tests.fake_record import FakeRecord
from uow.processor.engine.context import TaskContext
from uow.processor.engine.moved_groups import Moved, carry, move
from uow.processor.engine.ports import (
    Committed,
    Output,
    Plan,
    Stretch,
    Tp,
)
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import Hints, fenced, hints, live_rows, restore, unfenced
from uow.processor.engine.rows import GROUP_ROW_KEY_END
from uow.processor.engine.settings_record import RecordedSettings, mark_in
from uow.processor.engine.target_topics import TargetTopics
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import StateCorruptedError
from uow.topics.grouping import GroupPolicy
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    DestinationPolicy,
    HandlingPolicy,
    LatePolicy,
    Routing,
)
from uow.topics.rules import OnRuleChange, Release

WIDE = ReplayLimits(1000, 1 << 30, 1 << 30)
NARROW = ReplayLimits(5, 1 << 30, 1 << 30)


class GrowingCluster:
    """All partitions of a destination: logs, the tasks of its workers, and everything they put out."""

    def __init__(self, partitions: int, policy: DestinationPolicy, replay: ReplayLimits = WIDE, **more: Any) -> None:
        self.context = context_of(policy, partitions, replay=replay, **more)
        self.logs: dict[int, Logs] = {}
        self.tasks: dict[int, PartitionTask] = {}
        self.outputs: list[Output] = []
        self._sent = 0
        self._offsets: dict[int, int] = {}
        self.start()

    def start(self) -> None:
        """Workers start."""
        self.tasks = self._restored(self.context)

    def _restored(self, context: TaskContext) -> dict[int, PartitionTask]:
        inputs = [Tp(TOPICS.components, number) for number in range(context.partitions)]
        for tp in inputs:
            if tp.partition not in self.logs:
                self.logs[tp.partition] = Logs(tp)
                self.logs[tp.partition].input_bounds = (0, 1 << 40)
        return {tp.partition: task for tp, task in restore(self, {TOPICS.components: context}, inputs).items()}

    def send(self, sent: Sent, partition: int | None = None) -> int:
        """One record, read and committed at once; what is sent on is read as well. Where it went."""
        if partition is None:
            partition = partition_for(sent.key or b"", self.context.partitions)
        offset = self._offsets.get(partition, 0)
        self._offsets[partition] = offset + 2
        self._sent += 1
        record = FakeRecord(
            offset, sent.headers, sent.value, sent.key, T0 + self._sent, Tp(TOPICS.components, partition)
        )
        self.logs[partition].take_input([record])
        plan = self.tasks[partition].process([record])
        self.logs[partition].add(plan)
        for output in plan.outputs:
            if output.topic == TOPICS.components:
                self.send(Sent(output.headers, output.value, output.key), output.partition)
            else:
                self.outputs.append(output)
        return partition

    def tell(self, verb: str, id: str, **more: object) -> None:
        """One command."""
        order = told(verb, id, **more)  # type: ignore[arg-type]
        self.order(order, partition_for(order.key, self.context.partitions))

    def order(self, order: Told, *partitions: int) -> None:
        """A command in these partitions, or in all."""
        for partition in partitions or self.tasks:
            task = self.tasks[partition]
            record = FakeRecord(task.command_position, order.headers, order.value, order.key, T0 + self._sent)
            self._commit(partition, task.process([], [record]))

    def tick(self) -> None:
        """Time goes on a little, everywhere; in the partitions that were added first."""
        self._sent += 1
        for partition in reversed(self.tasks):
            if (plan := self.tasks[partition].tick(T0 + self._sent)) is not None:
                self._commit(partition, plan)

    def _commit(self, partition: int, plan: Plan) -> None:
        self.logs[partition].add(plan)
        self.outputs += plan.outputs

    def repartition(self, partitions: int) -> Moved:
        """The workers stop, without draining; groups move; workers start."""
        tasks, rows = self.state()
        self.context = replace(self.context, partitions=partitions)
        plans, moved = move(self.context, tasks, rows, {})
        for plan in plans:
            self.logs.setdefault(plan.tp.partition, Logs(plan.tp)).add(plan)
        self.start()
        return moved

    def state(self) -> tuple[dict[int, PartitionTask], dict[int, dict[bytes, bytes]]]:
        """Every partition as restored, and its changelog."""
        tasks = self._restored(self.context)
        logs = [Tp(TOPICS.groups_changelog, number) for number in tasks]
        return tasks, {log.partition: found for log, found in live_rows(self, logs).items()}

    @property
    def units(self) -> dict[str, tuple[str, object]]:
        """Id, and components of each unit; a doubled one fails."""
        units = [unit_of(output) for output in self.outputs if is_unit(output)]
        assert len({unit.id for unit in units}) == len(units)
        return {
            unit.id: (unit.unit_id, [(each.seq, each.value, each.headers) for each in unit.components])
            for unit in units
        }

    # -- LogReader

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        return {tp: self.logs[tp.partition].committed([tp])[tp] for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return {tp: self.logs[tp.partition].bounds([tp])[tp] for tp in tps}

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, range_ in ranges.items():
            yield from self.logs[tp.partition].read({tp: range_})


def drawn(rnd: Random) -> list[Sent]:
    """Components of sixty groups, shuffled, some with headers that a changelog row must keep."""
    sent = []
    for number in range(60):
        size = rnd.randint(1, 5)
        for seq in range(1, size + 1):
            more: dict[str, object] = {"component_id": f"{number}-{seq}"} if rnd.random() < 0.5 else {}
            if rnd.random() < 0.1:
                more["priority"] = 7
            if rnd.random() < 0.1:
                more["deliver_at"] = 0
            sent.append(c(seq, seq == size, f"g{number}", f"{number}/{seq}", **more))
    rnd.shuffle(sent)
    return sent


@pytest.mark.parametrize("replay", [WIDE, NARROW, ReplayLimits()], ids=["replayable", "some-replayable", "promoted"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (3, 4), (2, 5)])
def test_groups_open_before_and_completed_after_are_the_same_units_w107(
    before: int, after: int, replay: ReplayLimits
) -> None:
    sent = drawn(Random(before * 10 + after))
    steady, grown = (GrowingCluster(before, policy_of(), replay) for _ in range(2))
    for each in sent[:90]:
        steady.send(each)
        grown.send(each)
    open_before = {name for task in grown.tasks.values() for name in task.groups}
    ended = {name for task in grown.tasks.values() for name, group in task.groups.items() if group.end_known}
    moved = grown.repartition(after)
    assert {name for task in grown.tasks.values() for name in task.groups} == open_before
    assert 0 < moved.groups < len(open_before)
    for number, task in grown.tasks.items():
        assert all(partition_for(name, after) == number for name in task.groups)
    for each in sent[90:]:
        steady.send(each)
        grown.send(each)
    assert {name: content for name, (_, content) in grown.units.items()} == {
        name: content for name, (_, content) in steady.units.items()
    }
    assert len(grown.units) == 60
    for name in map(bytes.decode, ended):  # identity is where the end component lay, not where it was assembled (W-90)
        assert grown.units[name][0] == steady.units[name][0]


def test_second_growth_finds_what_the_first_one_moved_w107() -> None:
    sent = drawn(Random(1))
    cluster = GrowingCluster(1, policy_of())
    for each in sent[:60]:
        cluster.send(each)
    cluster.repartition(3)
    for each in sent[60:120]:
        cluster.send(each)
    cluster.repartition(7)
    for each in sent[120:]:
        cluster.send(each)
    assert len(cluster.units) == 60


def test_closed_ids_and_what_commands_said_move_along_w107() -> None:
    """W-19, W-203."""
    cluster = GrowingCluster(1, policy_of(incomplete_expiration_ms=60_000))
    ids = [f"g{number}" for number in range(20)]
    for name in ids:
        cluster.send(c(1, True, name))
        cluster.send(c(1, False, f"open-{name}"))
        cluster.tell("waive", f"open-{name}", seq="2")
        cluster.tell("extend", f"open-{name}", until=500)
    moved = cluster.repartition(4)
    assert moved.closed > 5
    assert moved.groups == moved.components > 5
    for task in cluster.tasks.values():
        for group in task.groups.values():
            assert (len(group.waived), group.extended > 0) == (1, True)
    cluster.outputs.clear()
    for name in ids:
        cluster.send(c(1, True, name))
        cluster.tell("waive", f"open-{name}", seq="2")  # the same command id
        cluster.send(c(3, True, f"open-{name}"))
    assert {output.topic for output in cluster.outputs} == {TOPICS.rejected, TOPICS.outcomes, TOPICS.units}
    assert len(cluster.units) == 20
    assert all(dict(output.headers)["uow-outcome"] == b"partial" for output in cluster.outputs if is_unit(output))


def test_second_growth_moves_no_closed_ids_from_where_the_first_one_left_them_w107() -> None:
    """An id that moved, was opened again and closed where it is now: what its first partition remembers of it is old."""
    cluster = GrowingCluster(2, policy_of(late_policy=LatePolicy.REOPEN))
    ids = [f"g{number}" for number in range(40)]
    for partitions in (3, 7):
        for name in ids:
            cluster.send(c(partitions, False, name))
            cluster.tell("cancel", name, command_id=f"{name}-{partitions}")
        cluster.repartition(partitions)
    for name in ids:
        cluster.send(c(2, False, name))
    generations = {group.id: group.generation for task in cluster.tasks.values() for group in task.groups.values()}
    assert generations == {name.encode(): 3 for name in ids}


def test_late_component_on_the_old_partition_is_sent_on_even_if_its_id_is_remembered_there_w107() -> None:
    """By a producer that has not noticed the new count; under `reopen` its group must not open on the old partition."""
    cluster = GrowingCluster(1, policy_of(late_policy=LatePolicy.REOPEN))
    ids = [f"g{number}" for number in range(10)]
    for name in ids:
        cluster.send(c(1, False, name))
        cluster.tell("cancel", name)
    cluster.repartition(2)
    for name in ids:
        cluster.send(c(2, False, name), partition=0)
    for number, task in cluster.tasks.items():
        assert all(partition_for(name, 2) == number for name in task.groups)
    assert {group.generation for task in cluster.tasks.values() for group in task.groups.values()} == {2}


def test_given_up_components_name_where_they_lay_w107() -> None:
    """W-80: `uow-source` of a component that moved with its group is the old partition."""
    cluster = GrowingCluster(1, policy_of())
    for number in range(8):
        cluster.send(c(1, False, f"g{number}"))
    cluster.repartition(3)
    for number in range(8):
        cluster.tell("cancel", f"g{number}")
    given_up = [output for output in cluster.outputs if output.topic == TOPICS.errors]
    assert {dict(output.headers)["uow-source"] for output in given_up} == {
        b"D.components/0/%d" % (2 * number) for number in range(8)
    }
    assert {output.partition for output in given_up} == {0, 1, 2}


def test_restore_under_another_count_than_the_offsets_were_committed_with_is_refused_w107() -> None:
    cluster = GrowingCluster(2, policy_of())
    cluster.send(c(1, False, "a"))
    cluster.context = replace(cluster.context, partitions=3)
    with pytest.raises(
        StateCorruptedError, match="had 2 partitions, now it has 3; stop all workers and run `uow topics repartition D`"
    ):
        cluster.start()


def test_partition_that_was_added_under_a_running_worker_is_refused_w107() -> None:
    cluster = GrowingCluster(2, policy_of())
    with pytest.raises(
        StateCorruptedError, match=r"D\.components/5: the topic had 2 partitions when this worker started"
    ):
        restore(cluster, {TOPICS.components: cluster.context}, [Tp(TOPICS.components, 5)])


@pytest.mark.parametrize(
    "policy",
    [policy_of(routing=Routing.PATH), DestinationPolicy(HandlingPolicy.PASS_THROUGH)],
    ids=["path", "pass_through"],
)
def test_count_means_nothing_where_no_group_hangs_on_it_w107(policy: DestinationPolicy) -> None:
    cluster = GrowingCluster(2, policy)
    cluster.send(c(1, False, "a"))
    cluster.context = replace(cluster.context, partitions=3)
    cluster.start()


NAMES = [f"name-{number}" for number in range(12)]


def by_rule(rows: Sequence[GroupPolicy], **more: Any) -> GrowingCluster:
    """Two partitions of a destination with these rows."""
    return GrowingCluster(2, policy_of(), rules=Table(*rows), **more)


def grown_to_five(cluster: GrowingCluster) -> Moved:
    """Afterwards every group, and everything else by rule, is where its id belongs."""
    moved = cluster.repartition(5)
    for number, task in cluster.tasks.items():
        ids = [group.id for group in task.groups.values()] + [stray.id for stray in task.partition.strays.values()]
        assert all(partition_for(each, 5) == number for each in ids)
    return moved


def told_units(cluster: GrowingCluster) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """Generation and outcome of the units of each id, in the order in which they left."""
    found: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for output in cluster.outputs:
        said: dict[str, Any] = dict(output.headers)
        if "uow-outcome" in said:
            found.setdefault(said["uow-id"], []).append((said["uow-generation"], said["uow-outcome"]))
    return found


def test_counted_groups_complete_after_the_growth_w107() -> None:
    cluster = by_rule([row(name, complete_count=3, age_ms=600_000) for name in NAMES])
    for name in NAMES:
        cluster.send(r(name))
        cluster.send(r(name))
    moved = grown_to_five(cluster)
    assert 0 < moved.groups < len(NAMES)
    for name in NAMES:
        cluster.send(r(name))
    assert {name: len(components) for name, (_, components) in cluster.units.items()} == {  # type: ignore[arg-type]
        f"low-stock/{name}": 3 for name in NAMES
    }
    assert not any(task.groups for task in cluster.tasks.values())


def test_generations_that_wait_for_their_release_move_with_the_one_that_is_open_w107() -> None:
    held: dict[str, Any] = {"rule": {"release": Release.HOLD_ALL}}
    cluster = by_rule([row(name, complete_count=2, age_ms=600_000, **held) for name in NAMES])
    for name in NAMES * 5:
        cluster.send(r(name))
    moved = grown_to_five(cluster)
    assert moved.groups % 3 == 0 < moved.groups
    cluster.order(released())
    assert told_units(cluster) == {
        f"low-stock/{name}".encode(): [(b"1", b"complete"), (b"2", b"complete")] for name in NAMES
    }
    for name in NAMES:
        cluster.send(r(name))
    cluster.order(released(command_id="again"))
    assert {units[-1] for units in told_units(cluster).values()} == {(b"3", b"complete")}


def test_a_release_in_advance_stays_on_the_partition_that_got_it_w107_b105() -> None:
    cluster = by_rule([row(complete_count=2, age_ms=600_000, rule={"release": Release.HOLD_FIRST})])
    cluster.order(released())
    grown_to_five(cluster)
    assert [bool(task.partition.credits) for task in cluster.tasks.values()] == [True, True, False, False, False]


def test_a_manifest_without_a_reply_moves_w107() -> None:
    ids = [f"low-stock/trip/{number}" for number in range(12)]
    cluster = by_rule([gathering()])
    for trip in ids:
        order = manifest(["hotel", "flight"], id=trip)
        cluster.order(order, partition_for(order.key, 2))
    assert grown_to_five(cluster).groups > 0
    for trip in ids:
        cluster.send(replace(reply(1, id=trip), key=trip.encode()))
        cluster.send(replace(reply(2, id=trip), key=trip.encode()))
    assert told_units(cluster) == {trip.encode(): [(b"1", b"complete")] for trip in ids}


def test_the_latest_live_version_holds_on_every_partition_w107_b13() -> None:
    live: dict[str, Any] = {"rule": {"on_rule_change": OnRuleChange.LIVE}, "age_ms": 600_000}
    rows = [row(name, version, complete_count=5 - version, **live) for name in NAMES for version in (1, 2, 3)]
    cluster = by_rule(rows)
    for name in NAMES:
        cluster.send(r(name))
        cluster.order(changed(2, name=f"low-stock/{name}"))
        cluster.order(changed(3, name=f"low-stock/{name}"), 0)  # the other partition has not read it yet
    grown_to_five(cluster)
    for name in NAMES:
        cluster.send(r(name))  # the first version, as a router stamps it that has not looked
    assert {len(components) for _, components in cluster.units.values()} == {2}  # type: ignore[arg-type]
    assert len(cluster.units) == len(NAMES)


def test_a_component_without_a_group_moves_where_its_id_belongs_w107_b72() -> None:
    cluster = by_rule([row(name, complete_count=3, age_ms=600_000) for name in NAMES])
    lying: dict[str, tuple[int, int]] = {}
    for name in NAMES:
        partition = cluster.send(r(name))
        lying[name] = partition, cluster._offsets[partition] - 2
        log = Tp(TOPICS.groups_changelog, partition)
        key, value = next(
            (each.key_, each.value_)
            for each in cluster.logs[partition].written
            if each.tp == log and f"/{name}\0".encode() in each.key_ and not each.key_.endswith(GROUP_ROW_KEY_END[1:])
        )
        cluster.tell("cancel", f"low-stock/{name}")
        cluster.logs[partition].append(log, key, value)
    grown_to_five(cluster)
    assert sum(task.orphans for task in cluster.tasks.values()) == len(NAMES)
    for name, (partition, offset) in lying.items():
        order = recycled(offset, 1, f"low-stock/{name}", f"recycle {name}", partition=partition)
        cluster.order(order, partition_for(order.key, 5))
        cluster.send(r(name))
        cluster.send(r(name))
    assert {len(components) for _, components in cluster.units.values()} == {3}  # type: ignore[arg-type]


def test_units_that_wait_for_their_topic_leave_before_later_ones_of_their_id_w107_b57() -> None:
    there: set[str] = set()
    targets = TargetTopics(
        lambda: ("orders",), lambda topics: dict.fromkeys({*topics} - there, "cannot be"), lambda: 0.0
    )
    targets.look()
    cluster = by_rule([row(name, complete_count=1, target_topic="orders") for name in NAMES], targets=targets)
    for name in NAMES * 2:
        cluster.send(r(name))
    grown_to_five(cluster)
    for name in NAMES:
        cluster.send(r(name))
    assert told_units(cluster) == {}
    there.add("orders")
    targets.look(at_once=True)
    cluster.start()
    cluster.tick()
    assert told_units(cluster) == {
        f"low-stock/{name}".encode(): [(b"%d" % number, b"complete") for number in (1, 2, 3)] for name in NAMES
    }
    assert [task.rows for task in cluster.tasks.values()] == [0] * 5


def carried(here: GrowingCluster) -> tuple[GrowingCluster, Moved]:
    """The same destination in topics of another cluster, where the mirror of its input begins at offset 10."""
    there = GrowingCluster(here.context.partitions, here.context.policy)
    recorded = RecordedSettings.of("D", there.context.policy)
    rules, targets = here.context.rules, here.context.targets
    there.context = replace(there.context, recorded_settings=recorded, rules=rules, targets=targets)
    tasks, rows = here.state()
    plans, moved = carry(there.context, tasks, rows, dict.fromkeys(tasks, (10, 3)))
    for plan in plans:
        there.logs[plan.tp.partition] = Logs(plan.tp)
        there.logs[plan.tp.partition].add(plan)
        there._offsets[plan.tp.partition] = 10
    there.start()
    return there, moved


@pytest.mark.parametrize("replay", [WIDE, NARROW, ReplayLimits()], ids=["replayable", "some-replayable", "promoted"])
def test_groups_that_are_carried_to_another_cluster_become_the_same_units(replay: ReplayLimits) -> None:
    sent = drawn(Random(7))
    steady, here = (GrowingCluster(3, policy_of(incomplete_expiration_ms=60_000), replay) for _ in range(2))
    for each in sent[:90]:
        steady.send(each)
        here.send(each)
    ended = {name for task in here.tasks.values() for name, group in task.groups.items() if group.end_known}
    was = {(name, group.opened_at) for task in here.tasks.values() for name, group in task.groups.items()}
    there, moved = carried(here)
    assert {(name, group.opened_at) for task in there.tasks.values() for name, group in task.groups.items()} == was
    assert (moved.groups, moved.components) == (len(was), sum(task.counts.held for task in there.tasks.values()))
    assert [task.clock for task in there.tasks.values()] == [task.clock for task in here.tasks.values()]
    assert [(task.position, task.command_position) for task in there.tasks.values()] == [(10, 3)] * 3
    there._sent = here._sent
    for each in sent[90:]:
        steady.send(each)
        there.send(each)
    assert not here.units.keys() & there.units.keys()
    both = here.units | there.units
    assert {name: content for name, (_, content) in both.items()} == {
        name: content for name, (_, content) in steady.units.items()
    }
    for name in map(bytes.decode, ended):
        assert both[name][0] == steady.units[name][0]


def test_closed_ids_and_what_commands_said_are_carried_along() -> None:
    """W-19, W-203."""
    here = GrowingCluster(2, policy_of())
    ids = [f"g{number}" for number in range(10)]
    for name in ids:
        here.send(c(1, True, name))
        here.send(c(1, False, f"open-{name}"))
        here.tell("waive", f"open-{name}", seq="2")
    there, moved = carried(here)
    assert (moved.groups, moved.closed) == (10, 10)
    assert not there.outputs
    known = [[task.partition.commands.at_by_id for task in cluster.tasks.values()] for cluster in (here, there)]
    assert known[0] == known[1] != [{}, {}]
    for name in ids:
        there.send(c(1, True, name))
        there.tell("waive", f"open-{name}", seq="2")  # the same command id
        there.send(c(3, True, f"open-{name}"))
    assert Counter(output.topic for output in there.outputs if output.topic != TOPICS.outcomes) == {
        TOPICS.rejected: 10,
        TOPICS.units: 10,
    }
    for log in there.logs.values():
        assert mark_in(log.metadata) == there.context.recorded_settings.mark  # type: ignore[union-attr]


@pytest.mark.parametrize("is_carried", [False, True], ids=["grown", "carried"])
def test_components_of_each_unit_of_a_key_stay_known_b38(is_carried: bool) -> None:
    """Three units of each key, whose components are sent again afterwards: none of them is a new one."""
    cluster = by_rule([row(f"k{n}", complete_count=2, destination=REMEMBERED) for n in range(8)])
    sent = [r(f"k{n % 8}", input=f"events/0/{n}") for n in range(48)]
    for each in sent:
        cluster.send(each)
    assert sum(map(is_unit, cluster.outputs)) == 24
    if is_carried:
        cluster, moved = carried(cluster)
    else:
        moved = grown_to_five(cluster)
    assert 0 < moved.closed <= 8
    cluster.outputs.clear()
    for each in sent:
        cluster.send(each)
    assert not any(map(is_unit, cluster.outputs))
    assert not any(task.groups for task in cluster.tasks.values())


def test_all_that_is_known_by_rule_is_carried_along_b13_b57_b72_b105() -> None:
    """Open groups, some with a manifest alone, versions of rows, releases in advance, components without a group, and units that wait for their topic."""
    away = TargetTopics(lambda: ("orders",), lambda topics: dict.fromkeys(topics, "is away"), lambda: 0.0)
    away.look()
    live: dict[str, Any] = {"rule": {"on_rule_change": OnRuleChange.LIVE}}
    rows = [row("open", complete_count=3, age_ms=600_000), row("waits", complete_count=1, target_topic="orders")]
    rows += [row("live", version, complete_count=5 - version, age_ms=600_000, **live) for version in (1, 2)]
    rows += [row("held", complete_count=2, age_ms=600_000, rule={"release": Release.HOLD_FIRST}), gathering()]
    here = by_rule(rows, targets=away)
    trip = manifest(["hotel", "flight"], id="low-stock/trip/1")
    for each in (trip, released()):
        here.order(each, 0)
    here.order(changed(2, name="low-stock/live"))
    for name in ("open", "open", "waits", "waits", "live"):
        here.send(r(name))
    log = Tp(TOPICS.groups_changelog, 0)
    written = here.logs[partition_for(b"low-stock/open", 2)].written
    key, value = next((each.key_, each.value_) for each in written if b"/open\0" in (each.key_ or b""))
    here.logs[0].append(log, (key or b"").replace(b"/open", b"/lost"), value)
    here.start()
    there, moved = carried(here)
    assert (moved.groups, moved.components) == (3, 3)

    def known(cluster: GrowingCluster) -> list[object]:
        return [
            (
                task.rows,
                {name: (group.opened_at, group.ruled and group.ruled.state) for name, group in task.groups.items()},
                task.partition.credits,
                task.partition.live,
                task.partition.strays,
                len(task.waiting_records),
            )
            for task in cluster.tasks.values()
        ]

    assert known(there) == known(here)
    assert sum(task.orphans for task in there.tasks.values()) == 1
    assert sum(len(task.waiting_records) for task in there.tasks.values()) == 2


@pytest.mark.parametrize("metadata", ["", "1;F=4;R=0", "1;F=4;R=2;P=2;C=5;S=0123456789abcdef", "d1;17:2"])
def test_a_mark_beside_the_offset_keeps_everybody_out_until_it_is_taken_away(metadata: str) -> None:
    marked = fenced(metadata, 4, "to D of A at b:1,c:2;d (id)")
    assert hints(Committed(4, marked)).moved == "to D of A at b:1,c:2,d (id)"
    assert fenced(marked, 4, "from X") == fenced(metadata, 4, "from X")
    assert hints(Committed(4, unfenced(marked))) == (hints(Committed(4, metadata)) if "F=" in metadata else Hints(4))

    cluster = GrowingCluster(1, policy_of())
    cluster.send(c(1, False, "a"))
    log = cluster.logs[0]
    log.metadata = fenced(log.metadata, 1, "to D of B (id)")
    with pytest.raises(StateCorruptedError, match=r"its groups have moved to D of B \(id\); take the destination out"):
        cluster.start()
    log.metadata = unfenced(log.metadata)
    cluster.start()
    assert list(cluster.tasks[0].groups) == [b"a"]
