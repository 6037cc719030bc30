"""How far the routers are, asked of the brokers: port `Upstream` of workers (aggregation, section 3, B-218).

A group must not be given up while a record for it lies unread in an input. So the ends of the inputs' partitions are noted, with the moment; once the
routers' committed positions have reached one, all that arrived there before that moment is in the components, or refused. An end counts open
transactions and markers; routers commit positions past markers when they are at the end.

A partition that routers may work off is waited for, however far behind they are: limits of time are as late as they are. One that *stands* is waited for as long as
`input_stall_ms` says; then limits go on without it, until it moves again. It stands if its position does not move, and a transaction holds back all that is unread, nobody
tells where it ends, or the routers make no progress anywhere: one that works off other partitions comes to this one later.

Nobody waits for an answer. Belongs here: looks at inputs, and what follows from them for time. Does not belong here: asking (`log_ends`, `input_logs`), and what
follows for a group (`uow.processor.engine`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from uow.processor.engine.ports import Tp
from uow.processor.kafka.log_ends import LogEnds, monotonic_ms
from uow.processor.kafka.log_offsets import error_of
from uow.processor.kafka.outage import Outage

log = logging.getLogger("uow.router")

LOOK_MS: Final = 200.0
"""Between two looks at the same partition."""
STEPS: Final = 50
"""Where a router is behind there are so many looks on the way that it has to go, or a few times as many while it falls behind: none is ever thrown away."""
STANDS_MS: Final = 1_000.0
"""After so long without progress it is asked where a partition's readable records end."""
STEP_MS: Final = 2_000.0
"""A gap between two calls counts for no more: nobody looked meanwhile."""
GAP_MS: Final = 10_000.0
"""Behind a longer gap nothing is known of the time before: whatever stands now may have moved and stopped meanwhile."""
STABLE_MS: Final = 5_000.0
"""A readable end from before that tells nothing: the transaction that held it back may have ended since."""
FRESH_MS: Final = 30_000.0
"""A partition is passed over by no older news of the routers."""
GONE_MS: Final = 60_000
"""A partition is gone once no broker has told of it for so long."""
NOT_ROUTED: Final = "{0}/{1}: what arrives there has not been routed for {2} s"
NOT_TOLD: Final = "{0}: for {2} s brokers have not told how far it is routed"


class InputLogs(Protocol):
    """Questions about inputs and routers that are no question for an end. Each answer may be a `KafkaException`."""

    def partitions(self, name: str) -> Future[Any]:
        """The numbers of an input's partitions, as the keys of a mapping."""
        ...

    def positions(self) -> Future[Mapping[Tp, int]]:
        """The committed positions of the routers."""
        ...


@dataclass(slots=True)
class _Partition:
    """A partition of an input.

    Attributes:
        settled: All that arrived here before this moment is in the components, or refused; epoch ms.
        looks: Ends that are not reached yet, each with its moment, in their order.
        asked: The moment of the look under way, epoch ms, and since when it is, monotonic ms.
        looked: When that was last, monotonic ms.
        position: Of its router.
        expected: The position when the look under way was put: its end lies no lower, unless the log is another one, or was cut.
        doubted: A position from before that; -1: none. It tells nothing about the log as it is now.
        stood_ms: Time for which it has been waited for without progress.
        silent_ms: The part of it for which nobody has told where it ends.
        readable: Where its readable records end; None: not known, or not as of the last progress.
    """

    settled: int
    looks: list[tuple[int, int]] = field(default_factory=list)
    asked: tuple[int, float] | None = None
    looked: float = -LOOK_MS
    position: int = -1
    expected: int = -1
    doubted: int = -1
    stood_ms: float = 0.0
    silent_ms: float = 0.0
    readable: int | None = None

    def is_due(self, now_ms: int, monotonic: float) -> bool:
        """True if the next look is to be taken."""
        behind = now_ms - self.looks[0][0] if self.looks else 0
        return self.asked is None and monotonic - self.looked >= max(LOOK_MS, behind / STEPS)

    def wait(self, step: float) -> None:
        """Counts time for which it is waited for."""
        self.silent_ms = 0.0 if self.asked is None else self.silent_ms + step
        if self.asked is not None or self.looks:
            self.stood_ms += step

    def wait_again(self) -> None:
        """Nobody looked for long: it is waited for from now on."""
        self.stood_ms = self.silent_ms = 0.0

    def ask(self, now_ms: int, monotonic: float) -> None:
        """A look is put."""
        self.asked, self.looked, self.expected = (now_ms, monotonic), monotonic, self.position

    def see(self, end: int) -> None:
        """The look is answered. What lay above the end is gone, and no earlier look waits for it."""
        if self.asked is None:
            return
        if end < self.expected:
            self.looks.clear()
            self.doubted = self.position
        if not self.looks:  # nothing is known to have lain there unread before
            self.stood_ms = 0.0
        self.looks = [(at, min(each, end)) for at, each in self.looks]
        self.looks.append((self.asked[0], end))
        self.asked = None

    def move(self, position: int) -> None:
        """The router is there now. If that is lower than before, looks at the log as it was tell nothing."""
        if position == self.doubted:
            return
        if position < self.position:
            self.looks.clear()
            self.asked = None
        if position != self.position:
            self.position, self.doubted, self.stood_ms = position, -1, 0.0
        while self.looks and self.position >= self.looks[0][1]:
            self.settled = max(self.settled, self.looks.pop(0)[0])
            self.stood_ms = 0.0

    def stands(self, limit: int, routers_stood_ms: float) -> bool:
        """True if it is not waited for any more.

        Args:
            limit: Time for which one that stands is waited for, ms.
            routers_stood_ms: Time for which the routers have made no progress anywhere.
        """
        is_held_back = self.readable is not None and self.position >= self.readable
        return self.stood_ms >= limit and (is_held_back or max(self.silent_ms, routers_stood_ms) >= limit)


@dataclass(slots=True)
class _Input:
    """An input.

    Attributes:
        counted: The number of partitions is known as of this moment, epoch ms: of the count before the last one, since a broker may hear of a new one late.
        last: The moment of the last count.
        counting: The question for it that is under way, with its moment.
        looked: When it was put last, monotonic ms.
        stood_ms: Time since the last answer, as far as somebody waited.
        partitions: By number.
        missing: Those that no answer has named since this moment.
    """

    counted: int = 0
    last: int = 0
    counting: tuple[int, Future[Any]] | None = None
    looked: float = -LOOK_MS
    stood_ms: float = 0.0
    partitions: dict[int, _Partition] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)

    def take(self, found: Mapping[int, Any], moment: int) -> None:
        """One that is new has nothing from before the moment up to which they were known. One that a broker does not know yet stays."""
        self.missing = {each: self.missing.get(each, moment) for each in self.partitions.keys() - found.keys()}
        gone = {each for each, since in self.missing.items() if moment - since >= GONE_MS}
        known = {each: one for each, one in self.partitions.items() if each not in gone}
        self.partitions = known | {each: _Partition(self.counted) for each in found if each not in known}
        self.counted, self.last, self.stood_ms = self.last, moment, 0.0


class RouterPositions:
    """Port `Upstream`. For one thread.

    Args:
        logs: Asks about inputs and routers.
        ends, stable_ends, starts: Of inputs.
        inputs_of: Returns the inputs whose records may come to a topic, with the time for which one that stands is waited for, ms; empty: no
            router writes there.
        monotonic: Milliseconds, from anywhere.
    """

    def __init__(
        self,
        logs: InputLogs,
        ends: LogEnds,
        stable_ends: LogEnds,
        starts: LogEnds,
        inputs_of: Callable[[str], Mapping[str, int]],
        monotonic: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._logs, self._ends, self._stable_ends, self._starts = logs, ends, stable_ends, starts
        self._inputs_of, self._monotonic = inputs_of, monotonic
        self._inputs: dict[str, _Input] = {}
        self._seen: dict[str, float] = {}
        self._positions: Mapping[Tp, int] | None = None
        self._asking: tuple[float, Future[Mapping[Tp, int]]] | None = None
        self._asked = self._told = -FRESH_MS
        self._called: float | None = None
        self._unknown_ms = self._stood_ms = 0.0  # without news of the routers; without progress of theirs
        self._outage = Outage(lambda: self._monotonic() / 1000)
        self._stalled: Mapping[Tp, int] = {}  # replaced as a whole: any thread may read it

    @property
    def stalled(self) -> Mapping[Tp, int]:
        """Partitions of inputs that limits of time go on without, with the time for which they have stood, ms; as of the last look, if that was not long ago."""
        monotonic, seen = self._monotonic(), self._seen
        told = self._stalled.items()
        return {tp: stood for tp, stood in told if monotonic - seen.get(tp.topic, monotonic) <= FRESH_MS}

    def settled(self, topic: str, now_ms: int) -> int:
        """Everything that arrived at the inputs before this moment is in the topic, or refused, or lies where nothing moves. Epoch ms; 0: nothing is known."""
        limits = self._inputs_of(topic)
        if not limits:
            return now_ms
        self._take_positions()
        for name in limits:
            self._look(name, self._inputs.setdefault(name, _Input()), now_ms)
        for side in (self._ends, self._stable_ends, self._starts):
            side.send()
        self._tell(limits)
        moments = [at for name, limit in limits.items() for at in self._moments(self._inputs[name], limit)]
        return min(moments, default=now_ms)

    def _moments(self, one: _Input, limit: int) -> Iterator[int]:
        """The moments up to which an input is settled, without those of what stands."""
        if one.stood_ms < limit:
            yield one.counted
        for partition in one.partitions.values():
            if not self._stands(partition, limit):
                yield partition.settled

    def _stands(self, partition: _Partition, limit: int) -> bool:
        if self._unknown_ms >= limit:
            return partition.stood_ms >= limit
        return self._monotonic() - self._told <= FRESH_MS and partition.stands(limit, self._stood_ms)

    # -- looks

    def _look(self, name: str, one: _Input, now_ms: int) -> None:
        monotonic = self._monotonic()
        gap = monotonic - self._seen.get(name, monotonic)
        step = min(gap, STEP_MS)
        self._seen[name] = monotonic
        if gap > GAP_MS:
            one.stood_ms = 0.0
            for partition in one.partitions.values():
                partition.wait_again()
        self._count(name, one, now_ms, step)
        for number, partition in one.partitions.items():
            tp = Tp(name, number)
            partition.wait(step)
            if partition.is_due(now_ms, monotonic):
                partition.ask(now_ms, monotonic)
            if partition.asked is not None and (end := self._ends.answer(tp, partition.asked[1])) is not None:
                partition.see(end.offset)
            if (position := self._position(tp)) is not None:
                partition.move(position)
            partition.readable = self._readable(tp, partition)

    def _readable(self, tp: Tp, partition: _Partition) -> int | None:
        """Asks again and again, since a transaction may end at any moment; an old answer, or one from before the last progress, is none."""
        if partition.stood_ms < STANDS_MS:
            return None
        monotonic = self._monotonic()
        self._stable_ends.answer(tp, monotonic - LOOK_MS)
        stable = self._stable_ends.answer(tp, monotonic - min(STABLE_MS, partition.stood_ms))
        return None if stable is None else stable.offset

    def _count(self, name: str, one: _Input, now_ms: int, step: float) -> None:
        """Counts the partitions: a new one is waited for like the others."""
        monotonic = self._monotonic()
        one.stood_ms += step
        if one.counting is not None and one.counting[1].done():
            moment, answer = one.counting
            one.counting = None
            try:
                one.take(answer.result(), moment)
            except Exception as failure:  # noqa: BLE001 - whatever it is: the question failed
                self._grumble(f"{name}: {error_of(failure).str()}")
        if one.counting is None and monotonic - one.looked >= LOOK_MS:
            one.counting, one.looked = (now_ms, self._logs.partitions(name)), monotonic

    def _take_positions(self) -> None:
        monotonic = self._monotonic()
        gap = 0.0 if self._called is None else monotonic - self._called
        self._called = monotonic
        if gap > GAP_MS:
            self._unknown_ms = self._stood_ms = 0.0
        self._unknown_ms += min(gap, STEP_MS)
        self._stood_ms += min(gap, STEP_MS)
        if self._asking is not None and self._asking[1].done():
            asked, answer = self._asking
            self._asking = None
            try:
                found, before = answer.result(), self._positions
            except Exception as failure:  # noqa: BLE001 - whatever it is: the question failed
                self._grumble(f"positions of the routers: {error_of(failure).str()}")
            else:
                if self._unknown_ms >= GAP_MS:
                    self._wait_again()
                self._positions, self._told, self._unknown_ms = found, asked, 0.0
                if before is None or any(at != before.get(tp) for tp, at in found.items()):
                    self._stood_ms = 0.0
        if self._asking is None and monotonic - self._asked >= LOOK_MS:
            self._asked = monotonic
            self._asking = monotonic, self._logs.positions()

    def _wait_again(self) -> None:
        """Nobody told of the routers for long: what they did meanwhile, and will do now, is not known."""
        self._stood_ms = 0.0
        for one in self._inputs.values():
            for partition in one.partitions.values():
                partition.wait_again()

    def _position(self, tp: Tp) -> int | None:
        """The committed position of its router; the log's start where there is none, since it begins there."""
        if self._positions is None:
            return None
        if (found := self._positions.get(tp)) is not None:
            return found
        start = self._starts.answer(tp, self._told - FRESH_MS)  # an older one is lower, if anything
        return None if start is None else start.offset

    # -- telling

    def _tell(self, limits: Mapping[str, int]) -> None:
        found = {
            Tp(name, number): int(partition.stood_ms)
            for name, limit in limits.items()
            for number, partition in self._inputs[name].partitions.items()
            if self._stands(partition, limit)
        }
        for name, limit in limits.items():
            one = self._inputs[name]
            if (unknown := max(self._unknown_ms, 0.0 if one.partitions else one.stood_ms)) >= limit:
                found[Tp(name, -1)] = int(unknown)
        before = {tp: stood for tp, stood in self._stalled.items() if tp.topic in limits}
        for tp in found.keys() - before.keys():
            what = NOT_TOLD if tp.partition < 0 else NOT_ROUTED
            log.warning("%s: limits of time go on without it (input_stall_ms)", what.format(*tp, found[tp] // 1000))
        for tp in before.keys() - found.keys():
            log.info("%s/%d: its records are routed again: limits of time wait for them", *tp)
        if found or before:
            self._stalled = {tp: stood for tp, stood in self._stalled.items() if tp.topic not in limits} | found

    def _grumble(self, text: str) -> None:
        if (line := self._outage.line(text)) is not None:
            log.warning("%s", line)
