"""The loop of a driver or a router, without what they do in a turn."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from uow.processor.engine.batch import Batch, Work
from uow.processor.engine.driver import Driver
from uow.processor.engine.poll_loop import PollLoop
from uow.processor.engine.ports import Blocked, Doubt, Tp


class Nothing:
    """Stands for a port."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: None


class Loop(PollLoop):
    """The first turn, and some ways back, meet a doubt."""

    def __init__(self, ways_back: int, stops: bool) -> None:
        super().__init__("loop", cast(Any, Nothing()), cast(Any, Nothing()), threading.Event())
        self.ways_back, self.stops = ways_back, stops
        self.turns = self.backs = 0
        self.ended: list[BaseException | None] = []

    def _topics(self) -> list[str]:
        return []

    def _turn(self) -> None:
        self.turns += 1
        if self.turns == 1:
            raise Doubt("a turn")
        self.request_stop()

    def _start_over(self, doubt: Doubt) -> None:
        self.backs += 1
        if self.stops:
            self.request_stop()
        if self.backs <= self.ways_back:
            raise Doubt("a way back")

    def _finished(self, error: BaseException | None) -> None:
        self.ended.append(error)


@pytest.mark.parametrize("ways_back", [0, 1, 3])
def test_a_doubt_on_the_way_back_starts_over_again(ways_back: int) -> None:
    """A partition could not be set back while its leader was silent: the worker ended with it."""
    loop = Loop(ways_back, stops=False)
    loop.run()
    assert (loop.turns, loop.backs, loop.ended) == (2, ways_back + 1, [None])


def test_a_worker_that_is_to_stop_does_not_try_for_ever() -> None:
    loop = Loop(9, stops=True)
    loop.run()
    assert loop.backs == 1
    assert isinstance(loop.ended[0], Doubt)


class Turn:
    """The records, plans and rows of a turn."""


class FailingSink:
    """Fails as librdkafka's errors become doubts: with a cause, whose frame holds the plans."""

    def write(self, plans: Turn) -> None:
        try:
            self._produce(plans)
        except OSError as failure:
            raise Doubt("the transaction was aborted") from failure

    def _produce(self, plans: Turn) -> None:
        raise OSError("broken")


class Remembering(Loop):
    """Looks on its way back if anything refers to the turn that met the doubt, and to the way back before."""

    def __init__(self, ways_back: int) -> None:
        super().__init__(ways_back, stops=False)
        self.turns_left: list[weakref.ref[Turn]] = []
        self.alive: list[int] = []

    def _turn(self) -> None:
        turn = Turn()
        self.turns_left.append(weakref.ref(turn))
        if self.turns:
            self.request_stop()
            return
        self.turns += 1
        FailingSink().write(turn)

    def _start_over(self, doubt: Doubt) -> None:
        self.alive.append(sum(each() is not None for each in self.turns_left))
        way_back = Turn()
        self.turns_left.append(weakref.ref(way_back))
        self.backs += 1
        if self.backs <= self.ways_back:
            FailingSink().write(way_back)


@pytest.mark.parametrize("ways_back", [0, 2])
def test_nothing_of_a_turn_outlives_its_doubt_while_the_cyclic_collector_is_off(ways_back: int) -> None:
    """Each doubt left its whole turn in memory until the worker was idle, and that may be never."""
    loop = Remembering(ways_back)
    gc.disable()
    try:
        loop.run()
        alive = [each() for each in loop.turns_left]
    finally:
        gc.enable()
    assert loop.alive == [0] * (ways_back + 1)
    assert alive == [None] * (ways_back + 3)


def test_batches_that_meet_a_doubt_are_emptied_since_an_agent_holds_its_last_one() -> None:
    batch = Batch(Tp("D.components", 0), Work.RECORDS)

    def process(batches: list[Batch]) -> None:
        batches[0].finish(Blocked("stands for a plan"))

    def write(plans: object, token: object) -> None:
        assert batch.outcome is not None
        raise Doubt("timed out")

    driver: Any = SimpleNamespace(
        _tried={},
        _ports=SimpleNamespace(hidden=None, placement=None),
        _runner=SimpleNamespace(process=process),
        _write=write,
    )
    with pytest.raises(Doubt):
        Driver._process(driver, [batch], None)
    assert (batch.outcome, [*batch.records]) == (None, [])
