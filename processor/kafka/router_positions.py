"""How far the routers are, asked of the brokers: port `Upstream` of workers (aggregation, section 3, B-218).

A group must not be given up while a record for it lies unread in an input. So the ends of the inputs' partitions are noted, with the moment; once the
routers' committed positions have reached one, all that arrived there before that moment is in the components, or refused. An end counts open
transactions and markers; routers commit positions past markers when they are at the end.

A partition that a router works off is waited for, however far behind it is: limits of time are as late as it is. One that *stands*, since no router runs, it is
blocked, has no leader, or an open transaction holds it back, is waited for as long as `input_stall_ms` says; then limits go on without it, until it moves again.

Nobody waits for an answer. Belongs here: looks at inputs, and what follows from them for time. Does not belong here: asking (`log_ends`, `input_logs`), and what
follows for a group (`uow.processor.engine`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import confluent_kafka as ck

from uow.processor.engine.ports import Tp
from uow.processor.kafka.log_ends import LogEnds, monotonic_ms
from uow.processor.kafka.outage import Outage

log = logging.getLogger("uow.router")

LOOK_MS: Final = 200.0
"""Between two looks at the same partition."""
STEPS: Final = 50
"""Where a router is behind there are so many looks on the way that it has to go, or a few times as many while it falls behind: none is ever thrown away."""
STEP_MS: Final = 2_000.0
"""A gap between two calls counts for no more: nobody looked meanwhile."""
FRESH_MS: Final = 30_000.0
"""A partition is passed over by no older news of the routers."""


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
        stood_ms: Time for which it has been waited for without progress.
    """

    settled: int
    looks: list[tuple[int, int]] = field(default_factory=list)
    asked: tuple[int, float] | None = None
    looked: float = -LOOK_MS
    position: int = -1
    stood_ms: float = 0.0

    def is_due(self, now_ms: int, monotonic: float) -> bool:
        """True if the next look is to be taken."""
        behind = now_ms - self.looks[0][0] if self.looks else 0
        return self.asked is None and monotonic - self.looked >= max(LOOK_MS, behind / STEPS)

    def move(self, position: int) -> None:
        """The router is there now."""
        if position > self.position:
            self.position, self.stood_ms = position, 0.0
        while self.looks and self.position >= self.looks[0][1]:
            self.settled = max(self.settled, self.looks.pop(0)[0])
            self.stood_ms = 0.0


@dataclass(slots=True)
class _Input:
    """An input.

    Attributes:
        counted: The number of partitions is known as of this moment, epoch ms.
        counting: The question for it that is under way, with its moment.
        looked: When it was put last, monotonic ms.
        stood_ms: Time since the last answer, as far as somebody waited.
        partitions: By number.
    """

    counted: int = 0
    counting: tuple[int, Future[Any]] | None = None
    looked: float = -LOOK_MS
    stood_ms: float = 0.0
    partitions: dict[int, _Partition] = field(default_factory=dict)

    def take(self, found: Mapping[int, Any], moment: int) -> None:
        """One that was not there at the last count has nothing from before it."""
        self.partitions = {each: self.partitions.get(each) or _Partition(self.counted) for each in found}
        self.counted, self.stood_ms = moment, 0.0


class RouterPositions:
    """Port `Upstream`. For one thread.

    Args:
        logs: Asks about inputs and routers.
        ends, starts: Of inputs.
        inputs_of: Returns the inputs whose records may come to a topic, with the time for which one that stands is waited for, ms; empty: no
            router writes there.
        monotonic: Milliseconds, from anywhere.
    """

    def __init__(
        self,
        logs: InputLogs,
        ends: LogEnds,
        starts: LogEnds,
        inputs_of: Callable[[str], Mapping[str, int]],
        monotonic: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._logs, self._ends, self._starts = logs, ends, starts
        self._inputs_of, self._monotonic = inputs_of, monotonic
        self._inputs: dict[str, _Input] = {}
        self._seen: dict[str, float] = {}
        self._positions: Mapping[Tp, int] | None = None
        self._asking: tuple[float, Future[Mapping[Tp, int]]] | None = None
        self._asked = self._told = -FRESH_MS
        self._outage = Outage(lambda: self._monotonic() / 1000)
        self._stalled: Mapping[Tp, int] = {}  # replaced as a whole: any thread may read it

    @property
    def stalled(self) -> Mapping[Tp, int]:
        """Partitions of inputs that limits of time go on without, with the time for which they have stood, ms; as of the last look, if that was not long ago."""
        looked = max(self._seen.values(), default=0.0)
        return self._stalled if self._monotonic() - looked <= FRESH_MS else {}

    def settled(self, topic: str, now_ms: int) -> int:
        """Everything that arrived at the inputs before this moment is in the topic, or refused, or lies where nothing moves. Epoch ms; 0: nothing is known."""
        limits = self._inputs_of(topic)
        if not limits:
            return now_ms
        self._take_positions()
        for name in limits:
            self._look(name, self._inputs.setdefault(name, _Input()), now_ms)
        self._ends.send()
        self._starts.send()
        self._tell(limits)
        moments = [at for name, limit in limits.items() for at in self._moments(self._inputs[name], limit)]
        return min(moments, default=now_ms)

    def _moments(self, one: _Input, limit: int) -> Iterator[int]:
        """The moments up to which an input is settled, without those of what stands."""
        if one.stood_ms < limit:
            yield one.counted
        is_fresh = self._monotonic() - self._told <= FRESH_MS
        for partition in one.partitions.values():
            if partition.stood_ms < limit or not is_fresh:
                yield partition.settled

    # -- looks

    def _look(self, name: str, one: _Input, now_ms: int) -> None:
        monotonic = self._monotonic()
        step = min(monotonic - self._seen.get(name, monotonic), STEP_MS)
        self._seen[name] = monotonic
        self._count(name, one, now_ms, step)
        for number, partition in one.partitions.items():
            tp = Tp(name, number)
            if partition.asked is not None or partition.looks:
                partition.stood_ms += step
            if partition.is_due(now_ms, monotonic):
                partition.asked, partition.looked = (now_ms, monotonic), monotonic
            if partition.asked is not None and (end := self._ends.answer(tp, partition.asked[1])) is not None:
                partition.looks.append((partition.asked[0], end.offset))
                partition.asked = None
            if partition.looks and (position := self._position(tp)) is not None:
                partition.move(position)

    def _count(self, name: str, one: _Input, now_ms: int, step: float) -> None:
        """Counts the partitions: a new one is waited for like the others."""
        monotonic = self._monotonic()
        one.stood_ms += step
        if one.counting is not None and one.counting[1].done():
            moment, answer = one.counting
            one.counting = None
            try:
                one.take(answer.result(), moment)
            except ck.KafkaException as failure:
                self._grumble(f"{name}: {failure.args[0].str()}")
        if one.counting is None and monotonic - one.looked >= LOOK_MS:
            one.counting, one.looked = (now_ms, self._logs.partitions(name)), monotonic

    def _take_positions(self) -> None:
        monotonic = self._monotonic()
        if self._asking is not None and self._asking[1].done():
            self._told, answer = self._asking
            self._asking = None
            try:
                self._positions = answer.result()
            except ck.KafkaException as failure:
                self._grumble(f"positions of the routers: {failure.args[0].str()}")
        if self._asking is None and monotonic - self._asked >= LOOK_MS:
            self._asked = monotonic
            self._asking = monotonic, self._logs.positions()

    def _position(self, tp: Tp) -> int | None:
        """The committed position of its router; the log's start where there is none, since it begins there."""
        if self._positions is None:
            return None
        if (found := self._positions.get(tp)) is not None:
            return found
        start = self._starts.answer(tp, self._told)
        return None if start is None else start.offset

    # -- telling

    def _tell(self, limits: Mapping[str, int]) -> None:
        found = {
            Tp(name, number): int(partition.stood_ms)
            for name, limit in limits.items()
            for number, partition in self._inputs[name].partitions.items()
            if partition.stood_ms >= limit
        }
        unknown = [(name, self._inputs[name]) for name, limit in limits.items() if self._inputs[name].stood_ms >= limit]
        found |= {Tp(name, -1): int(one.stood_ms) for name, one in unknown if not one.partitions}
        before = {tp: stood for tp, stood in self._stalled.items() if tp.topic in limits}
        for tp in found.keys() - before.keys():
            log.warning(
                "%s/%d: what arrives there has not been routed for %d s: limits of time go on without it (input_stall_ms)",
                *tp,
                found[tp] // 1000,
            )
        for tp in before.keys() - found.keys():
            log.info("%s/%d: its records are routed again: limits of time wait for them", *tp)
        if found or before:
            self._stalled = {tp: stood for tp, stood in self._stalled.items() if tp.topic not in limits} | found

    def _grumble(self, text: str) -> None:
        if (line := self._outage.line(text)) is not None:
            log.warning("%s", line)
