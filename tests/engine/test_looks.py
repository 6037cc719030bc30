"""A partition with a passed deadline is asked where it ends, nobody waits for the answer, and what is asked is kept until it is reached (W-82, W-83)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.core.script import context_of, policy_of
from tests.engine.test_long_restores import P0, P1, RestoringDriver, Watched
from tests.shell.memory_kafka import MemoryKafka
from uow.processor.engine.batch import Batch, Task, Work
from uow.processor.engine.driver_ports import Wanted
from uow.processor.engine.ports import EndQuestion, Poll, Tp
from uow.processor.engine.task import PartitionTask
from uow.processor.engine.ticks import ASK_AGAIN_MS, CHECK_MS, Look

AGE_MS = 1_000
TURN_MS = 20


class Leaders(Watched):
    """Ends are told some time after they are asked for.

    Attributes:
        takes: That time, ms, by partition of either topic.
        hanging: Partitions, of both topics or of one, that are not told at all.
        asked: Number of questions by partition of `D.components`.
    """

    def __init__(self, kafka: MemoryKafka, name: str) -> None:
        super().__init__(kafka, name)
        self.takes = 0
        self.hanging: set[int | Tp] = set()
        self.asked: dict[Tp, int] = {}

    def read(self, limit: int, timeout: float) -> Poll | None:
        return super().read(limit, 0.0)

    def end(self, tp: Tp) -> EndQuestion:
        self.asked[tp] = self.asked.get(tp, 0) + 1
        question, known = super().end(tp), self.kafka.clock.now + self.takes

        def answer() -> int | None:
            is_known = not self.hanging.intersection({tp, tp.partition}) and self.kafka.clock.now >= known
            return question.answer() if is_known else None

        return EndQuestion(question.asked_at, answer)


class TimedDriver(RestoringDriver):
    """Two partitions whose groups expire; turns are taken by hand."""

    def __init__(self) -> None:
        super().__init__(source=Leaders)
        self.leaders: Leaders = self.source  # type: ignore[assignment]
        self.driver._clock = self.driver._partitions._clock = self.kafka.clock  # the append times'
        self.driver._sink.open(lambda: None)
        self.leaders.open(["D.components"], self.driver._on_assign, self.driver._on_revoke, self.driver._on_revoke)

    def _restore(self, tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        context = context_of(policy_of(incomplete_expiration_ms=AGE_MS), partitions=2)
        return {tp: PartitionTask(tp, context) for tp in tps}

    def assigned(self, tasks: Mapping[Tp, Task]) -> None: ...

    def process(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            with batch:
                batch.apply(self.driver._partitions.tasks[batch.tp])

    def send(self, group: bytes, tp: Tp = P0) -> None:
        self.kafka.append(tp.topic, group, b"x", [("uow-id", group), ("uow-seq", b"1")], tp.partition)

    def turns(self, ms: int, before: Callable[[], None] = lambda: None) -> None:
        for _ in range(ms // TURN_MS):
            self.kafka.clock.now += TURN_MS
            before()
            self.driver._turn()

    def given_up(self) -> set[bytes]:
        return {record.key() or b"" for record in self.kafka.topic("D.outcomes")}


@pytest.fixture
def world() -> TimedDriver:
    driver = TimedDriver()
    driver.turns(100)
    return driver


@pytest.mark.parametrize("takes", [0, 500, 5_000])
def test_slow_answers_make_limits_late_by_as_much_and_are_not_asked_for_twice_w83(
    world: TimedDriver, takes: int
) -> None:
    world.leaders.takes = takes
    world.send(b"a")
    world.turns(AGE_MS + takes + 3 * TURN_MS)
    assert world.given_up() == {b"a"}
    assert world.leaders.asked == {Tp("D.components", 0): 1, Tp("D.commands", 0): 1}


def test_a_leader_that_hangs_delays_its_own_partition_alone_w83(world: TimedDriver) -> None:
    world.leaders.hanging = {0}
    world.send(b"a"), world.send(b"d", P1)
    world.turns(AGE_MS + 3 * TURN_MS)
    assert world.given_up() == {b"d"}
    world.turns(60_000)
    assert world.given_up() == {b"d"}
    world.leaders.hanging = set()
    world.turns(3 * TURN_MS)
    assert world.given_up() == {b"a", b"d"}
    assert world.leaders.asked[P0] == 1, "a question that is under way is not put again, and its answer counts"


def test_a_look_is_kept_until_it_is_reached_however_far_the_end_moves_away_meanwhile_w82(world: TimedDriver) -> None:
    """The worker reads 100 records a turn, and 100 come: it is at no end that is asked for now."""
    world.send(b"a")
    world.turns(AGE_MS)
    number = 0

    def flood() -> None:
        nonlocal number
        for _ in range(100):
            number += 1
            world.kafka.append("D.components", b"p", b"x", [], 0, at_ms=1)  # passes, and tells no time

    for _ in range(10):
        flood()
    world.turns(40 * TURN_MS, flood)
    assert world.given_up() == {b"a"}
    assert world.leaders.asked[P0] == 1


def test_a_record_that_came_after_a_look_tells_as_much_as_its_end_w82(world: TimedDriver) -> None:
    """Where brokers tell no end, for replicas that are slow, input that goes on does not wait for it; the commands have an end of their own."""
    commands = Tp("D.commands", 0)
    silent, known = EndQuestion(0, lambda: None), EndQuestion(0, lambda: 0)
    positions = {P0: 7, commands: 0}
    look = Look(100, None, 110, {P0: silent, commands: known}, 0)
    assert [look.is_reached(world.leaders, positions, clock) for clock in (0, 110, 111)] == [False, False, True]
    look = Look(100, None, 110, {P0: silent, commands: silent}, 0)
    assert not look.is_reached(world.leaders, positions, 111)


def test_what_is_appended_between_the_clock_and_the_question_does_not_reach_the_look_w82(world: TimedDriver) -> None:
    """The question is put 12 ms after the clock was read: a record from between them came before what still counts."""
    began, slow = world.kafka.clock.now, False
    world.send(b"a")
    world.kafka.clock.now = began + 6
    world.send(b"b")
    world.turns(AGE_MS - TURN_MS)
    put = world.leaders.token

    def token() -> object:
        nonlocal slow
        if not slow and world.kafka.clock.now == began + AGE_MS + 1:
            slow = True
            first = [("uow-id", b"c"), ("uow-seq", b"1")]
            world.kafka.append("D.components", b"c", b"x", first, 0, at_ms=began + AGE_MS + 2)
            for _ in range(250):
                world.kafka.append("D.components", b"p", b"x", [], 0, at_ms=began + AGE_MS + 3)
            last = [("uow-id", b"b"), ("uow-seq", b"2"), ("uow-end", b"true")]
            world.kafka.append("D.components", b"b", b"x", last, 0, at_ms=began + AGE_MS + 5)
            world.kafka.clock.now += 12
        return put()

    world.leaders.token = token  # type: ignore[method-assign]
    world.kafka.clock.now = began + AGE_MS + 1
    for _ in range(10):
        world.driver._turn()
        world.kafka.clock.now += 1
    assert slow
    world.turns(600)
    assert b"b" not in world.given_up()


def test_for_groups_by_rule_no_record_stands_for_the_end_b218(world: TimedDriver) -> None:
    """What the routers committed before the look may carry the stamps of a clock that is ahead of ours."""
    commands = Tp("D.commands", 0)
    positions = {P0: 7, commands: 0}
    silent, known = EndQuestion(0, lambda: None), EndQuestion(0, lambda: 0)
    assert not Look(100, 90, 110, {P0: silent, commands: known}, 0).is_reached(world.leaders, positions, 1_000)


def test_a_clock_that_was_restored_reaches_no_look_w82(world: TimedDriver) -> None:
    """A predecessor read it off records, on a broker ahead of us: nothing was read here since the look."""
    task = world.driver._partitions.tasks[P0]
    assert isinstance(task, PartitionTask)
    world.send(b"a")
    world.turns(AGE_MS - 3 * TURN_MS)
    world.leaders.hanging = {P0}
    task.partition.clock = world.kafka.clock.now + 900
    world.turns(600)
    assert world.given_up() == set()
    world.leaders.hanging = set()
    world.turns(300)
    assert world.given_up() == {b"a"}


class AddedInput:
    """Port `Upstream`: a version of the rules adds an input while a look is under way."""

    stalled: Mapping[Tp, int] = {}

    def __init__(self) -> None:
        self.is_added = False

    def settled(self, topic: str, now_ms: int) -> int:
        return 0 if self.is_added else now_ms


def test_a_look_from_before_an_input_was_added_settles_nothing_there_b218() -> None:
    world, routers = TimedDriver(), AddedInput()
    world.driver._ports = replace(world.driver._ports, upstream=routers)
    settled: list[int | None] = []
    process = world.process

    def noted(batches: Sequence[Batch]) -> None:
        settled.extend(batch.settled for batch in batches if batch.work is Work.TICK)
        process(batches)

    world.driver._runner.process = noted  # type: ignore[method-assign]
    world.turns(100)
    world.leaders.takes = 500
    world.send(b"a")
    world.turns(AGE_MS + 2 * TURN_MS)
    assert world.leaders.asked
    routers.is_added = True
    world.turns(600)
    assert settled == [0]


class SilentRouters:
    """Port `Upstream`: nothing is known of them."""

    stalled: Mapping[Tp, int] = {}

    def settled(self, topic: str, now_ms: int) -> int:
        return 0


def check_a_clock_that_is_put_right_stalls_no_limit() -> None:
    """An hour ahead, a partition waits for the routers' answer, and is to be looked at a moment later."""
    world = TimedDriver()
    world.driver._ports = replace(world.driver._ports, upstream=SilentRouters())
    world.turns(100)
    world.send(b"a")
    world.turns(TURN_MS)
    world.kafka.clock.shift = 3_600_000
    world.turns(TURN_MS)
    world.kafka.clock.shift = 0
    world.turns(AGE_MS + 300)
    assert world.given_up() == {b"a"}


def test_a_clock_that_is_put_right_stalls_no_limit_w83() -> None:
    check_a_clock_that_is_put_right_stalls_no_limit()


def test_an_end_that_was_cut_off_is_not_waited_for_for_ever_w83(world: TimedDriver) -> None:
    """An unclean election took what lay below it: two answers, and the lower one counts."""
    log = world.kafka._log(P0)
    world.send(b"a")
    world.turns(AGE_MS - TURN_MS)
    log.end += 50
    log.open["nobody"] = log.end - 50
    world.turns(3 * TURN_MS)
    assert world.given_up() == set()
    log.end -= 50
    del log.open["nobody"]
    world.turns(CHECK_MS + 3 * TURN_MS)
    assert world.given_up() == {b"a"}


class Inputs:
    """Port `Upstream`: tells what the test says, and when it was asked."""

    def __init__(self, world: TimedDriver) -> None:
        self.world, self.says, self.asked = world, list[int](), list[int]()
        world.driver._ports = replace(world.driver._ports, upstream=self)
        self.stalled: Mapping[Tp, int] = {}

    def settled(self, topic: str, now_ms: int) -> int:
        self.asked.append(self.world.kafka.clock.now)
        return self.says.pop(0) if self.says else now_ms


def test_inputs_are_looked_at_while_a_look_is_under_way_b218(world: TimedDriver) -> None:
    """What stands there is waited for as long as somebody looks: the answer of `D.components` may take longer than that."""
    inputs = Inputs(world)
    world.leaders.takes = 30_000
    world.send(b"a")
    world.turns(AGE_MS + 30_000 + 3 * TURN_MS)
    assert world.given_up() == {b"a"}
    steps = [after - before for before, after in pairwise(inputs.asked)]
    assert len(steps) > 100
    assert max(steps) <= 2 * ASK_AGAIN_MS


def test_an_input_that_is_added_during_a_look_counts_though_it_has_caught_up_since_b218(world: TimedDriver) -> None:
    inputs, told = Inputs(world), list[int | None]()
    process = world.driver._runner.process

    def watched(batches: Sequence[Batch]) -> None:
        told.extend(batch.settled for batch in batches if batch.work is Work.TICK)
        process(batches)

    world.driver._runner.process = watched  # type: ignore[method-assign]
    world.leaders.takes = 1_000
    world.send(b"a")
    world.turns(AGE_MS + 100)
    inputs.says = [0]
    world.turns(1_500)
    assert told == [0]
