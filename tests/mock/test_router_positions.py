"""Limits of time of groups by rule are late, never absent: what delays them, and for how long (B-218). Brokers that answer by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from uow.processor.engine.ports import Tp
from uow.processor.kafka.log_ends import LogEnds
from uow.processor.kafka.router_positions import STEPS, RouterPositions

LIMIT = 60_000
INPUTS = {"D": ("a", "b"), "E": ("e",)}
START = 1_000_000
TPS = (Tp("a", 0), Tp("a", 1), Tp("b", 0))


class Routers:
    """Inputs with one record a millisecond, and a router that is told how far it is.

    Attributes:
        lag: Milliseconds by which the router of a partition is behind; None: it stands, at an open transaction.
        blocked: Partitions that stand before records which can be read.
        lost: Records by which a log is shorter than it was.
        hanging: Partitions whose leader does not answer.
        takes: Milliseconds from a question to its answer.
        starts_take: So many more where the question is for the start of a log.
        quiet: Since when nothing comes to any input; what would have, comes all at once afterwards.
        bursts: Such times, from their beginning to their end.
        ended: Partitions to which nothing comes any more, with their ends.
    """

    def __init__(self) -> None:
        self.now, self.takes, self.starts_take = 0, 0, 0
        self.counts = {"a": 2, "b": 1, "e": 1}
        self.lag: dict[Tp, int | None] = {}
        self.stands_at: dict[Tp, int] = {}
        self.hanging: set[Tp] = set()
        self.blocked: set[Tp] = set()
        self.lost: dict[Tp, int] = {}
        self.is_coordinator_silent = False
        self.quiet: int | None = None
        self.bursts: list[tuple[int, int]] = []
        self.ended: dict[Tp, int] = {}
        self._under_way: list[tuple[int, Tp | None, Future[Any], Callable[[], Any]]] = []
        calls = count()
        sides = (self._ends, self._stable_ends, self._starts)
        ends, stable_ends, starts = (LogEnds(each, lambda: self.now + next(calls) * 1e-6) for each in sides)
        limits = lambda topic: dict.fromkeys(INPUTS[topic], LIMIT)  # noqa: E731
        clock = lambda: self.now + next(calls) * 1e-6  # noqa: E731
        self.positions_of = RouterPositions(self, ends, stable_ends, starts, limits, clock)

    def _later(self, tp: Tp | None, answer: Callable[[], Any], more: int = 0) -> Future[Any]:
        future: Future[Any] = Future()
        self._under_way.append((self.now + self.takes + more, tp, future, answer))
        return future

    def partitions(self, name: str) -> Future[Any]:
        return self._later(None, lambda: dict.fromkeys(range(self.counts[name])))

    def positions(self) -> Future[Mapping[Tp, int]]:
        tps = [Tp(name, number) for name, count in self.counts.items() for number in range(count)]
        return self._later(Tp("group", 0), lambda: {tp: at for tp in tps if (at := self._position(tp)) > 0})

    def _position(self, tp: Tp) -> int:
        lag = self.lag.get(tp, 0)
        if lag is None:
            return self.stands_at.setdefault(tp, self._last(tp))
        self.stands_at.pop(tp, None)
        return max(0, min(self._last(tp), self.now - lag))

    def _last(self, tp: Tp) -> int:
        return self.ended.get(tp, self.now if self.quiet is None else self.quiet)

    def speak(self) -> None:
        """The quiet is over."""
        if self.quiet is not None:
            self.bursts.append((self.quiet, self.now))
            self.quiet = None

    def arrived(self, offset: int) -> int:
        """When the record of this offset came."""
        return max([offset, *(end for start, end in self.bursts if start <= offset < end)])

    def _ends(self, tps: Sequence[Tp], timeout: float) -> dict[Tp, Future[Any]]:
        """As of the moment of the answer."""
        return {tp: self._later(tp, partial(self._end, tp)) for tp in tps}

    def _end(self, tp: Tp) -> Any:
        return SimpleNamespace(offset=self._last(tp) - self.lost.get(tp, 0))

    def _stable_ends(self, tps: Sequence[Tp], timeout: float) -> dict[Tp, Future[Any]]:
        held = {tp: self._position(tp) for tp in tps if self.lag.get(tp, 0) is None and tp not in self.blocked}
        return {tp: self._later(tp, partial(SimpleNamespace, offset=held.get(tp, self._last(tp)))) for tp in tps}

    def _starts(self, tps: Sequence[Tp], timeout: float) -> dict[Tp, Future[Any]]:
        return {tp: self._later(tp, lambda: SimpleNamespace(offset=0), self.starts_take) for tp in tps}

    def _is_silent(self, tp: Tp | None) -> bool:
        return tp in self.hanging or (tp == Tp("group", 0) and self.is_coordinator_silent)

    def turn(self, topic: str = "D", ms: int = 20) -> int:
        """A turn of a worker in which something is due: by how much limits of time are late, ms."""
        self.now += ms
        for late in [each for each in self._under_way if self.now - each[0] > 5_000 and each[1] == Tp("group", 0)]:
            self._under_way.remove(late)
            late[2].set_exception(ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT)))
        for each in [each for each in self._under_way if each[0] <= self.now and not self._is_silent(each[1])]:
            self._under_way.remove(each)
            each[2].set_result(each[3]())
        return START + self.now - self.positions_of.settled(topic, START + self.now)

    def turns(self, ms: int, topic: str = "D") -> list[int]:
        return [self.turn(topic) for _ in range(ms // 20)]


@pytest.mark.parametrize("lag", [0, 9_000, 10_200, 45_000, 300_000])
def test_a_router_that_is_behind_and_goes_on_delays_limits_by_as_much_and_not_for_ever_b218(lag: int) -> None:
    """At 10.2 s nothing was ever settled, since the look that would be reached was always thrown away for newer ones."""
    routers = Routers()
    routers.lag[Tp("a", 0)] = lag
    routers.turns(lag + 2_000)
    late = routers.turns(2 * lag + 2_000)
    assert min(late) >= lag - 20
    assert max(late) <= lag * (1 + 3 / STEPS) + 1_000
    assert not routers.positions_of.stalled


def test_a_partition_that_nobody_routes_is_waited_for_as_long_as_the_setting_says_and_told_b218() -> None:
    routers = Routers()
    routers.turns(1_000)
    routers.lag[Tp("a", 1)] = None
    late = routers.turns(LIMIT + 5_000)
    assert max(late[: (LIMIT - 2_000) // 20]) > LIMIT - 4_000, "so long it is waited for"
    assert max(late[-100:]) < 1_000, "and no longer"
    assert routers.positions_of.stalled.keys() == {Tp("a", 1)}
    routers.lag[Tp("a", 1)] = 0
    assert max(routers.turns(2_000)[-50:]) < 1_000
    assert not routers.positions_of.stalled


def test_one_that_moves_again_is_waited_for_again_b218() -> None:
    routers = Routers()
    routers.turns(1_000)
    routers.lag[Tp("a", 1)] = None
    routers.turns(LIMIT + 5_000)
    routers.lag[Tp("a", 1)] = 30_000
    assert min(routers.turns(5_000)[-100:]) > 25_000


def test_only_what_an_input_feeds_is_delayed_b218() -> None:
    routers = Routers()
    routers.turns(1_000), routers.turns(1_000, "E")
    routers.lag[Tp("a", 1)] = None
    routers.turns(10_000)
    assert max(routers.turns(2_000, "E")[50:]) < 1_000


def test_a_router_that_nobody_runs_delays_limits_no_longer_than_one_partition_that_stands_b218() -> None:
    routers = Routers()
    for tp in (Tp("a", 0), Tp("a", 1), Tp("b", 0)):
        routers.lag[tp] = None
        routers.stands_at[tp] = 0
    assert max(routers.turns(LIMIT + 5_000)[-100:]) < 1_000
    assert len(routers.positions_of.stalled) == 3


def test_a_leader_that_hangs_is_waited_for_like_a_partition_that_stands_b218() -> None:
    routers = Routers()
    routers.turns(1_000)
    routers.hanging.add(Tp("b", 0))
    routers.lag[Tp("b", 0)] = None
    assert max(routers.turns(LIMIT + 5_000)[-100:]) < 1_000
    assert routers.positions_of.stalled.keys() == {Tp("b", 0)}
    routers.hanging.clear(), routers.lag.clear()
    assert max(routers.turns(2_000)[-50:]) < 1_000
    assert not routers.positions_of.stalled


def test_a_silent_coordinator_of_the_routers_stops_no_limits_for_ever_b218() -> None:
    routers = Routers()
    routers.is_coordinator_silent = True
    assert max(routers.turns(2 * LIMIT)[-100:]) < 1_000


@pytest.mark.parametrize("takes", [500, 4_000])
def test_slow_answers_delay_limits_by_a_few_of_them_b218(takes: int) -> None:
    routers = Routers()
    routers.takes = takes
    routers.turns(4 * takes)
    assert max(routers.turns(10 * takes)) <= 3 * takes + 500


def test_a_new_partition_is_waited_for_like_an_old_one_b218() -> None:
    routers = Routers()
    routers.turns(1_000)
    routers.counts["b"] = 2
    routers.lag[Tp("b", 1)] = None
    routers.stands_at[Tp("b", 1)] = 0
    created = routers.now
    for _ in range(250):
        late = routers.turn()
        assert routers.now - late <= created, "what lies there arrived after it was made"


def test_what_moved_while_nobody_looked_is_not_passed_over_b218() -> None:
    """News of the routers from before a long silence tell nothing about now."""
    routers = Routers()
    routers.turns(1_000)
    routers.lag[Tp("a", 1)] = None
    routers.turns(LIMIT + 5_000)
    assert routers.positions_of.stalled
    routers.now += 3_600_000
    assert not routers.positions_of.stalled, "old news are not told"
    routers.lag[Tp("a", 1)] = 1_000
    late = routers.turns(500)
    assert min(late) >= 980


@pytest.mark.parametrize("silent", ["leader", "all", "all, just behind the record"])
def test_the_silence_of_brokers_is_no_time_in_which_what_comes_afterwards_stood_b218(silent: str) -> None:
    """Nothing came to any input for long. Brokers are away for most of the limit, and routers as well; a record comes when they are back."""
    routers, slow = Routers(), Tp("a", 0)
    routers.turns(1_000)
    routers.quiet = routers.now
    routers.turns(2 * LIMIT)

    def come() -> None:
        routers.lag[slow], routers.ended = None, dict.fromkeys([*TPS[1:], Tp("e", 0)], routers._last(slow))
        routers._position(slow)
        routers.blocked.add(slow)
        routers.speak()

    if silent == "all, just behind the record":
        come()
        routers.turns(1_000)
    came = routers.now
    routers.hanging |= {slow} if silent == "leader" else set(TPS)
    routers.is_coordinator_silent = silent != "leader"
    routers.turns(LIMIT - 2_000)
    if routers.quiet is not None:
        come()
        came = routers.now
    routers.hanging.clear()
    routers.is_coordinator_silent = False
    for _ in range(LIMIT * 3 // 4 // 20):
        assert routers.now - routers.turn() <= came + 20


def test_starts_that_are_told_late_stop_no_limits_b218() -> None:
    """Of a partition that never had a record no position is committed."""
    routers = Routers()
    routers.starts_take = 300
    empty = Tp("a", 1)
    position = routers._position
    routers._position = lambda tp: 0 if tp == empty else position(tp)  # type: ignore[method-assign]
    ends = routers._ends
    routers.positions_of._ends._question = lambda tps, timeout: {
        **ends([tp for tp in tps if tp != empty], timeout),
        **{tp: routers._later(tp, lambda: SimpleNamespace(offset=0)) for tp in tps if tp == empty},
    }
    routers.turns(2_000)
    assert max(routers.turns(2_000)) < 1_500


def test_a_partition_that_one_broker_does_not_know_yet_is_not_forgotten_b218() -> None:
    routers = Routers()
    routers.turns(1_000)
    routers.counts["b"] = 2
    routers.lag[Tp("b", 1)] = 10_000
    routers.turns(20_000)
    for told in (1, 2, 1, 1, 2):
        routers.counts["b"] = told
        assert min(routers.turns(400)) >= 9_900


def test_time_before_a_long_silence_counts_for_nothing_b218() -> None:
    """Nobody routed for 55 s; an hour later somebody does, and stops once more."""
    routers = Routers()
    routers.turns(1_000)
    for tp in (Tp("a", 0), Tp("a", 1), Tp("b", 0), Tp("e", 0)):
        routers.lag[tp] = None
        routers.blocked.add(tp)
    routers.turns(LIMIT - 5_000)
    routers.now += 3_600_000
    assert min(routers.turns(LIMIT - 5_000)) > LIMIT


def test_the_silence_of_a_coordinator_before_a_long_silence_of_ours_counts_for_nothing_b218() -> None:
    routers = Routers()
    routers.turns(1_000)
    routers.is_coordinator_silent = True
    routers.turns(LIMIT - 5_000)
    routers.now += 3_600_000
    assert min(routers.turns(LIMIT - 5_000)) > LIMIT


def test_a_transaction_that_ends_is_seen_at_once_however_long_it_was_open_b218() -> None:
    """It stood for two hours, so that looks at ends are minutes apart; then there are records to read, and other partitions move."""
    routers = Routers()
    routers.turns(1_000)
    held = Tp("a", 1)
    routers.lag[held] = None
    for _ in range(7_200_000 // 2_000):
        routers.turn(ms=2_000)
    assert routers.positions_of.stalled.keys() == {held}
    routers.blocked.add(held)
    assert min(routers.turns(2_000)[-50:]) > LIMIT


class Played(Routers):
    """A `Routers` under drawn changes, which knows what may be passed over.

    Attributes:
        moved: When each partition moved last, or nobody looked.
        free: When it was last one whose records can be read, and whose end is told.
        changed: When anything changed last.
    """

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw, self.story = draw, list[str]()
        self.moved, self.free, self.changed = dict.fromkeys(TPS, 0), dict.fromkeys(TPS, 0), 0
        self.reached: dict[Tp, int] = {}
        self.silent_since = 0

    def _position(self, tp: Tp) -> int:
        """It never goes back."""
        before = self.reached.get(tp, 0)
        position = before if self.lag.get(tp, 0) is None else max(before, super()._position(tp))
        if position != before:
            self.reached[tp], self.moved[tp] = position, self.now
        return position

    def change(self) -> None:
        draw, tp = self.draw, self.draw.choice(TPS)
        match draw.choice(
            ["stop", "stop", "go", "go", "hang", "block", "takes", "all stop", "quiet", "quiet", "silent"]
        ):
            case "stop":
                self.lag[tp] = None
            case "go":
                self.lag[tp] = draw.choice([0, 1_000, 10_200, 40_000])
                self.hanging.discard(tp)
            case "hang":
                self.hanging ^= {tp}
            case "block":
                self.blocked ^= {tp}
            case "takes":
                self.takes = draw.choice([0, 0, 500, 2_000])
            case "quiet" if self.quiet is None:
                self.quiet = self.now
            case "quiet":
                self.speak()
            case "silent":
                self.be_silent()
            case _:
                self.lag |= dict.fromkeys([*TPS, Tp("e", 0)])
        self.changed = self.now
        self.story.append(
            f"{self.now}: {self.lag} hang {self.hanging} block {self.blocked} takes {self.takes} quiet {self.quiet} "
            f"silent {self.is_coordinator_silent}"
        )

    def be_silent(self) -> None:
        """The routers' coordinator, until the next time; then whatever stands is waited for again, if that took long."""
        if self.is_coordinator_silent and self.now - self.silent_since > 16_000:
            self.moved = dict.fromkeys(TPS, self.now)
        self.is_coordinator_silent, self.silent_since = not self.is_coordinator_silent, self.now

    def step(self) -> None:
        ms = self.draw.choice([20, 20, 20, 200, 1_000, 4_000])
        if self.draw.random() < 0.002:
            ms = self.draw.choice([15_000, 60_000, 3_600_000])
            self.moved = dict.fromkeys(TPS, self.now + ms)
        settled = self.now + ms - self.turn(ms=ms)
        for tp in TPS:
            if tp in self.blocked and tp not in self.hanging:
                self.free[tp] = self.now
        if self.now - self.changed > self.takes + 5_000 + ms:
            self.check(settled)

    def check(self, settled: int) -> None:
        """What is not routed, and older than what counts as settled, has stood for as long as the setting says, and for a reason."""
        if self.is_coordinator_silent and self.now - self.silent_since >= LIMIT:
            return  # nobody knows what the routers do
        for tp in TPS:
            position = self._position(tp)
            came = self.arrived(position)
            if position == self._last(tp) or came >= settled - 1:
                continue
            assert self.now - max(self.moved[tp], came) >= LIMIT, (tp, *self.story[-6:])
            all_stood = self.now - max(self.moved.values()) >= LIMIT
            assert all_stood or self.now - self.free[tp] > 0, (tp, *self.story[-6:])


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_nothing_is_passed_over_that_has_not_stood_for_as_long_as_the_setting_says_b218(
    seed: int,
) -> None:
    """And limits are never absent: whatever stands at the end, they go on. Only what moves is waited for as long as nobody tells where it ends."""
    played = Played(random.Random(seed))
    for _ in range(12):
        played.change()
        for _ in range(played.draw.choice([20, 60, 200])):
            played.step()
    played.takes = 0
    played.speak()
    for _ in range(2 * LIMIT // 200):
        late = played.turn(ms=200)
    behind = max((lag for tp in TPS if (lag := played.lag.get(tp)) is not None), default=0)
    stands = {tp for tp in TPS if played.lag.get(tp, 0) is None}
    if (
        not played.is_coordinator_silent
        and not played.hanging - stands
        and not stands & played.blocked - played.hanging
    ):
        assert late <= behind * (1 + 3 / STEPS) + 1_500, played.story[-6:]


def test_a_question_that_a_broker_refuses_stops_no_limits_for_ever_b218(caplog: pytest.LogCaptureFixture) -> None:
    routers = Routers()

    def refused(name: str) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return future

    routers.partitions = refused  # type: ignore[method-assign]
    assert max(routers.turns(LIMIT + 5_000)[-100:]) < 1_000
    assert routers.positions_of.stalled.keys() == {Tp("a", -1), Tp("b", -1)}
    assert len(caplog.records) < 20


def test_a_partition_that_can_be_read_is_waited_for_while_the_routers_make_progress_elsewhere_b218() -> None:
    """A big catch-up: a router takes its partitions in turn, and comes to each of them once in 90 s."""
    routers = Routers()
    routers.turns(1_000)
    began, burst = routers.now, Tp("a", 0)
    routers.blocked.add(burst)
    for _ in range(3):
        routers.lag[burst] = None
        late = routers.turns(90_000)
        assert min(late[-100:]) > 80_000
        routers.lag[burst] = 10_000
        routers.turns(200)
    assert not routers.positions_of.stalled
    assert routers.now > began + 4 * LIMIT


def test_routers_that_make_no_progress_at_all_delay_limits_for_a_bounded_time_b218() -> None:
    routers = Routers()
    routers.turns(1_000)
    for tp in (Tp("a", 0), Tp("a", 1), Tp("b", 0), Tp("e", 0)):
        routers.lag[tp] = None
        routers.blocked.add(tp)
    assert max(routers.turns(LIMIT + 5_000)[-100:]) < 1_000


def test_an_input_that_was_made_again_is_not_taken_for_read_b218() -> None:
    """Its offsets begin at 0, far below those that the routers committed before."""
    routers = Routers()
    routers.turns(10_000)
    made, new = routers.now, Tp("a", 0)
    routers.lost[new] = made
    position = routers._position
    routers._position = lambda tp: 0 if tp == new else position(tp)  # type: ignore[method-assign]
    for _ in range(LIMIT // 2 // 20):
        assert routers.now - routers.turn() <= made + 20


def test_a_position_above_the_end_tells_nothing_of_what_comes_after_it_b218() -> None:
    """The log was made again, or cut, and the group's position is still that of the old one."""
    routers = Routers()
    routers.turns(10_000)
    made, new, position = routers.now, Tp("a", 0), routers._position
    routers.lost[new] = made
    routers._position = lambda tp: made if tp == new else position(tp)  # type: ignore[method-assign]
    for _ in range(LIMIT // 2 // 20):
        assert routers.now - routers.turn() <= made + 20


def test_a_look_above_a_log_that_was_cut_is_not_waited_for_for_ever_b218() -> None:
    """Nothing comes to the log any more: its router is at its end, below the looks that were taken before."""
    routers = Routers()
    routers.turns(1_000)
    cut = Tp("a", 0)
    routers.lag[cut] = 300
    routers.turns(1_000)
    end, position, told = routers.now - 300, routers._position, routers._end
    routers._end = lambda tp: SimpleNamespace(offset=end) if tp == cut else told(tp)  # type: ignore[method-assign]
    routers._position = lambda tp: end if tp == cut else position(tp)  # type: ignore[method-assign]
    assert max(routers.turns(5_000)[-50:]) < 2_000


@pytest.mark.parametrize("failure", [None, RuntimeError("odd")])
def test_a_question_that_failed_makes_no_old_news_fresh_b218(failure: Exception | None) -> None:
    """An hour after the last look those that stood then may have moved: the routers' positions are not told now."""
    routers = Routers()
    routers.turns(1_000)
    tps = [Tp("a", 0), Tp("a", 1), Tp("b", 0)]
    routers.lag = dict.fromkeys([*tps, Tp("e", 0)])
    routers.turns(LIMIT + 5_000)
    assert routers.positions_of.stalled.keys() == {*tps}
    routers.now += 3_600_000
    routers.lag = dict.fromkeys(tps, 10_000)
    routers.is_coordinator_silent = True
    if failure is not None:
        broken: Future[Any] = Future()
        broken.set_exception(failure)
        routers.positions = lambda: broken  # type: ignore[method-assign]
    assert min(routers.turns(LIMIT - 10_000)) > 3_500_000
    assert max(routers.turns(20_000)[-100:]) < 1_000, "unknown positions are waited for no longer than what stands"
    assert Tp("a", -1) in routers.positions_of.stalled


def test_progress_counts_while_no_end_is_told_b218() -> None:
    """Nobody tells where the log ends, but its router moves."""
    routers = Routers()
    routers.turns(1_000)
    routers.hanging.add(Tp("a", 0))
    routers.lag[Tp("a", 0)] = 10_000
    assert min(routers.turns(LIMIT + 10_000)[-100:]) > LIMIT
    assert not routers.positions_of.stalled


def test_a_new_partition_that_a_broker_tells_of_late_is_waited_for_from_the_count_before_b218() -> None:
    """The broker that was asked for the last count had not heard of it yet."""
    routers = Routers()
    routers.turns(1_000)
    created = routers.now
    routers.turns(160)
    routers.counts["b"] = 2
    routers.lag[Tp("b", 1)] = None
    routers.stands_at[Tp("b", 1)] = 0
    for _ in range(100):
        late = routers.turn()
    assert routers.now - late <= created
