"""Commands wait until their partition has read what was appended before them, and no longer (W-62, W-203)."""

from __future__ import annotations

from typing import Any

from tests.core.script import TOPICS, c, ms
from tests.fake_record import INPUT, FakeRecord
from uow.processor.engine.input_topics import InputTopics
from uow.processor.engine.ports import EndQuestion, Tp
from uow.processor.engine.waiting_commands import WaitingCommands

COMMANDS = Tp(TOPICS.commands, INPUT.partition)


class WaitingSource:
    """Says where the components end, and is told what not to fetch."""

    def __init__(self, end: int | None) -> None:
        self.ends = end
        self.asked = 0
        self.told: list[tuple[str, list[Tp]]] = []

    def end(self, tp: Tp) -> EndQuestion:
        """An answer counts when it comes, and does not change then."""
        assert tp == INPUT
        self.asked += 1
        told: list[int] = []

        def answer() -> int | None:
            if not told and self.ends is not None:
                told.append(self.ends)
            return told[0] if told else None

        return EndQuestion(0, answer)

    def has_read(self, tp: Tp, position: int, end: int) -> bool:
        return position >= end

    def pause(self, tps: list[Tp]) -> None:
        self.told.append(("pause", tps))

    def resume(self, tps: list[Tp]) -> None:
        self.told.append(("resume", tps))


def component(offset: int, at: float) -> FakeRecord:
    return FakeRecord(offset, c(1).headers, at=ms(at))


def commands(*at: float, first: int = 0) -> list[Any]:
    return [
        FakeRecord(first + number, [("uow-command", b"cancel")], at=ms(t), tp=COMMANDS) for number, t in enumerate(at)
    ]


def waiting(end: int | None, *at: float) -> tuple[WaitingCommands, Any]:
    source: Any = WaitingSource(end)
    waits = WaitingCommands(source, InputTopics({INPUT.topic: COMMANDS.topic}))
    waits.take(INPUT, commands(*at))
    return waits, source


def ready(waits: WaitingCommands, position: int, *records: FakeRecord) -> list[int]:
    return [record.offset() for record in waits.ready(INPUT, position, records, latest=ms(1_000))]


def test_a_command_waits_for_the_end_offset_that_was_asked_for_after_it_and_not_for_more_w62_w203() -> None:
    waits, source = waiting(7, 5)
    assert ready(waits, 6) == []
    source.ends = 100
    assert ready(waits, 7) == [0]
    assert source.asked == 1, "what comes later is not waited for"


def test_a_later_component_in_hand_tells_that_all_before_it_are_read_w62_w203() -> None:
    waits, _ = waiting(9, 5, 6, 8)
    assert ready(waits, 1, component(1, 4), component(2, 5)) == [], "another one of the same moment may follow"
    assert ready(waits, 3, component(3, 5), component(4, 7)) == [0, 1]
    assert ready(waits, 3, component(3, 9), component(4, 4)) == [0, 1, 2]


def test_an_append_time_that_cannot_be_tells_nothing_w62() -> None:
    waits, _ = waiting(9, 5)
    assert ready(waits, 3, component(3, 1_001)) == []


def test_while_nobody_tells_the_end_a_command_waits_and_a_late_answer_counts_w62() -> None:
    waits, source = waiting(None, 5)
    assert ready(waits, 7) == []
    source.ends = 7
    assert ready(waits, 7) == [0]
    assert source.asked == 1, "a question that is under way is not put again"


def test_the_end_is_asked_for_again_when_another_command_comes_w62() -> None:
    waits, source = waiting(7, 5)
    assert ready(waits, 7) == [0]
    source.ends = 8
    waits.take(INPUT, commands(6, first=1))
    assert ready(waits, 7) == []
    assert ready(waits, 8) == [0, 1]


def test_what_is_read_a_second_time_is_there_once_w203() -> None:
    waits, _ = waiting(0, 5, 6)
    waits.take(INPUT, commands(6, 7, first=1))
    assert ready(waits, 0) == [0, 1, 2]


def test_where_commands_wait_no_more_are_fetched_until_they_are_decided_w203() -> None:
    waits, source = waiting(7, 5, 6)
    waits.end_turn({INPUT: 1})
    assert (ready(waits, 7), waits.paused) == ([1], {COMMANDS})
    waits.end_turn({INPUT: 1})
    waits.end_turn({INPUT: 2})
    assert [told for told in source.told if told[1]] == [("pause", [COMMANDS]), ("resume", [COMMANDS])]
    assert not waits


def test_a_partition_that_stands_still_for_want_of_memory_obeys_at_once_w203() -> None:
    waits, source = waiting(7, 5)
    assert [record.offset() for record in waits.all(INPUT)] == [0]
    assert not source.asked


def test_what_went_is_forgotten_and_may_come_back_w203() -> None:
    waits, _ = waiting(7, 5)
    waits.end_turn({INPUT: 0})
    waits.forget([INPUT])
    assert (ready(waits, 7), list(waits), waits.paused) == ([], [], frozenset())
    waits.take(INPUT, commands(5))
    assert ready(waits, 7) == [0]
