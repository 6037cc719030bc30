"""The batches of a turn: which records and commands a task gets, and how results are sorted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import pytest

from tests.core.script import TOPICS, ms
from tests.fake_record import INPUT, FakeRecord
from uow.processor.engine.batch import Batch
from uow.processor.engine.input_topics import InputTopics
from uow.processor.engine.portions import Portions
from uow.processor.engine.ports import Blocked, EndQuestion, Plan, Tp
from uow.processor.engine.shares import SHARE_S, Shares
from uow.processor.engine.turn import TurnBatches, TurnResults
from uow.processor.engine.waiting_commands import WaitingCommands

COMMANDS = Tp(TOPICS.commands, INPUT.partition)
OTHER = Tp(INPUT.topic, INPUT.partition + 1)
LATEST = ms(1_000)


class Positions(NamedTuple):
    """Where a task stands."""

    position: int = 0
    command_position: int = 0


class TurnSource:
    """Answers end offsets, and notes what is read again."""

    def __init__(self) -> None:
        self.ends = 10
        self.sought: dict[Tp, int] = {}

    def end(self, tp: Tp) -> EndQuestion:
        return EndQuestion(0, lambda: self.ends)

    def has_read(self, tp: Tp, position: int, end: int) -> bool:
        return position >= end

    def seek(self, positions: dict[Tp, int]) -> None:
        self.sought.update(positions)

    def pause(self, tps: Collection[Tp]) -> None: ...

    def resume(self, tps: Collection[Tp]) -> None: ...


class Turn:
    """The parts of one driver that make batches."""

    def __init__(self) -> None:
        self.source: Any = TurnSource()
        self.portions, self.shares = Portions(), Shares()
        inputs = InputTopics({TOPICS.components: TOPICS.commands})
        self.waiting = WaitingCommands(self.source, inputs)
        self.batches = TurnBatches(self.source, inputs, self.waiting, self.portions, self.shares)

    def make(
        self,
        *polled: FakeRecord,
        blocked: Collection[Tp] = (),
        paused: Collection[Tp] = (),
        **at: int,
    ) -> list[tuple[Tp, list[int], list[int]]]:
        records: dict[Tp, list[Any]] = {}
        for each in polled:
            records.setdefault(Tp(each.topic(), each.partition()), []).append(each)
        made = self.batches.make(records, {INPUT: Positions(**at)}, blocked, paused, LATEST)
        return [
            (each.tp, *([record.offset() for record in some] for some in (each.records, each.commands)))
            for each in made
        ]  # type: ignore[misc]


def component(offset: int, at: float = 1, tp: Tp = INPUT) -> FakeRecord:
    return FakeRecord(offset, [("uow-id", b"a")], at=ms(at), tp=tp)


def command(offset: int, at: float = 1) -> FakeRecord:
    return FakeRecord(offset, [("uow-command", b"cancel")], at=ms(at), tp=COMMANDS)


@pytest.fixture
def turn() -> Turn:
    return Turn()


def test_records_before_the_position_and_of_partitions_that_are_not_owned_or_blocked_are_dropped(turn: Turn) -> None:
    """A poll may hold them after a rebalance or a restore."""
    polled = [*map(component, range(4)), component(0, tp=OTHER)]
    assert turn.make(*polled, position=2) == [(INPUT, [2, 3], [])]
    assert turn.make(*polled, position=4) == []
    assert turn.make(*polled, blocked=[INPUT]) == []
    assert not turn.source.sought


def test_a_portion_leaves_the_rest_of_the_poll_to_be_read_again(turn: Turn) -> None:
    turn.portions.halve(INPUT, 3, 4)
    assert turn.make(*map(component, range(4))) == [(INPUT, [0, 1], [])]
    assert turn.source.sought == {INPUT: 2}


def test_the_whole_poll_of_a_partition_is_its_batch_and_no_copy(turn: Turn) -> None:
    """Its task empties it as it takes the records."""
    polled: dict[Tp, list[Any]] = {INPUT: [*map(component, range(4))]}
    (batch,) = turn.batches.make(polled, {INPUT: Positions()}, (), (), LATEST)
    assert batch.records is polled[INPUT]


@pytest.mark.parametrize(
    ("position", "limit", "taken"), [(0, 4, [0, 1]), (1, 0, [1, 2, 3]), (1, 4, [1, 2]), (4, 0, [])]
)
def test_of_a_part_of_a_poll_nothing_else_stays_in_memory(
    turn: Turn, position: int, limit: int, taken: list[int]
) -> None:
    """The rest is read again, and the batch lets go of its own records as it goes."""
    polled: dict[Tp, list[Any]] = {INPUT: [*map(component, range(4))]}
    if limit:
        turn.portions.halve(INPUT, 3, limit)
    made = turn.batches.make(polled, {INPUT: Positions(position)}, (), (), LATEST)
    assert [record.offset() for batch in made for record in batch.records] == taken
    assert turn.source.sought == ({INPUT: taken[-1] + 1} if limit and taken[-1] < 3 else {})
    assert polled == {INPUT: []}


def test_components_and_commands_of_one_partition_are_one_batch(turn: Turn) -> None:
    assert turn.make(command(0, at=5), component(9, at=2), position=9) == [(INPUT, [9], [0])]


def test_a_command_waits_for_components_before_it_though_nothing_is_polled(turn: Turn) -> None:
    assert turn.make(command(0)) == []
    assert turn.make(position=9) == []
    assert turn.make(position=10) == [(INPUT, [], [0])]


def test_a_command_that_is_carried_out_already_is_dropped(turn: Turn) -> None:
    assert turn.make(command(4), command(5), position=10, command_position=5) == [(INPUT, [], [5])]


def test_a_partition_paused_for_memory_gets_its_commands_at_once(turn: Turn) -> None:
    """One of them may be the one that frees memory."""
    assert turn.make(command(0), paused=[INPUT]) == [(INPUT, [], [0])]


def test_while_a_bad_record_is_searched_a_command_stands_alone(turn: Turn) -> None:
    turn.portions.single(INPUT, 9)
    assert turn.make(component(9), command(0), command(1), position=9) == [(INPUT, [9], [])]
    assert turn.make(position=10) == [(INPUT, [], [0])]


def test_while_a_bad_command_is_searched_it_stands_alone_behind_the_records_before_it_also_where_more_lie_ready(
    turn: Turn,
) -> None:
    """On a busy partition there are always more."""
    turn.portions.halve(INPUT, last=1, count=2, last_command=0)
    records = [component(0, at=1), component(1, at=2), component(2, at=3), component(3, at=5), component(4, at=3)]
    assert turn.make(command(0, at=3), *records) == [(INPUT, [0], [])]
    assert turn.make(*records, position=1) == [(INPUT, [1], [])]
    turn.portions.passed(INPUT, 2, 0)
    assert turn.make(*records, position=2) == [(INPUT, [2], [])]
    assert turn.make(*records, position=3) == [(INPUT, [], [0])]
    assert turn.source.sought == {INPUT: 3}
    turn.portions.passed(INPUT, 3, 1)
    turn.waiting.end_turn({INPUT: 1})
    assert turn.make(*records, position=3, command_position=1) == [(INPUT, [3, 4], [])]


def test_append_time_of_the_first_record_is_known_until_the_partition_goes(turn: Turn) -> None:
    assert turn.batches.append_time(INPUT) == 0
    turn.make(component(0, at=5), component(1, at=6))
    assert turn.batches.append_time(INPUT) == ms(5)
    turn.make(component(2, at=1_000), position=2)
    assert turn.batches.append_time(INPUT) == LATEST
    turn.make(component(2, at=1_001), position=2)
    assert turn.batches.append_time(INPUT) == 0, "such a time is not believed"
    turn.make(component(3, at=7), position=3)
    turn.batches.forget(INPUT)
    assert turn.batches.append_time(INPUT) == 0


def finished(outcome: Any) -> Batch:
    batch = Batch(INPUT)
    batch.finish(outcome)
    return batch


PLAN = Plan(INPUT, "groups", "closed", 0, TOPICS.commands, 0)


def test_results_are_plans_failures_and_nothing() -> None:
    blocked = Blocked("why")
    batches = [finished(each) for each in (None, PLAN, blocked, PLAN)]
    results = TurnResults.of(batches)
    assert results.plans == [PLAN, PLAN]
    assert list(results.planned) == [(batches[1], PLAN), (batches[3], PLAN)]
    assert list(results.failed) == [(batches[2], blocked)]


def test_where_an_agent_died_nothing_is_written() -> None:
    with pytest.raises(KeyboardInterrupt):
        TurnResults.of([finished(PLAN), finished(KeyboardInterrupt())])


def test_what_a_partition_has_beyond_its_share_is_read_again(turn: Turn) -> None:
    for now in (0, 100):
        turn.shares.took(INPUT, 500, 500 * SHARE_S, now)
        turn.shares.took(OTHER, 1, 0.0, now)
    assert turn.make(*map(component, range(5))) == [(INPUT, [0], [])]
    assert turn.source.sought == {INPUT: 1}
