"""Target topics of rules that cannot be written to now, and the units that wait for them (B-57).

A record for a topic that does not exist would hold up the transaction of all partitions until it fails. So the topics are looked at from time to
time; a unit for one that is missing waits as a row of the groups' changelog, with everything it is, while its partition goes on. Units of one
target leave in the order in which their groups closed.

Belongs here: which topics are away, when to look again, and those units. Does not belong here: asking brokers (`uow.processor.kafka`), and
making plans (`task`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from uow.processor.engine.ports import Output, Plan
from uow.schemas.component import decode_component, encode_component
from uow.schemas.records import ComponentRecord, Source

log = logging.getLogger("uow.targets")

FIRST_LOOK_MS: Final = 1_000
"""Until the next look while a topic is missing; twice as long each time."""
LONGEST_LOOK_MS: Final = 30_000
"""Between two looks at most, also while all are there."""
WAITING_KEY: Final = b"\x05"
"""Begins the key of a row of the changelog: a record that waits for its topic."""
LEAVE_BYTES: Final = 8 * 1024 * 1024
"""Most that one plan writes of what has waited."""
RECORD_BYTES: Final = 1_600
"""Memory of such a record beside its value: its headers, mostly."""


class TargetTopics:
    """Which of the target topics are away. For the driver's thread; `away` for any.

    Args:
        wanted: Returns the target topics of all rows that are known.
        there: Returns those of these topics that exist; raises `TimeoutError` if no broker answers.
        monotonic_ms: Milliseconds, from anywhere.

    Attributes:
        away: Topics that are missing, as far as they were looked at.
    """

    def __init__(
        self,
        wanted: Callable[[], Collection[str]],
        there: Callable[[Collection[str]], Collection[str]],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._wanted, self._there, self._monotonic_ms = wanted, there, monotonic_ms
        self._known: frozenset[str] = frozenset()
        self._next_look, self._wait_ms = 0.0, FIRST_LOOK_MS
        self.away: frozenset[str] = frozenset()

    def look(self, *, at_once: bool = False) -> None:
        """Looks, if it is time, or if a topic is new; `at_once` in any case, for a transaction has failed."""
        wanted = frozenset(self._wanted())
        if not wanted or not (at_once or wanted - self._known or self._monotonic_ms() >= self._next_look):
            return
        try:
            away = wanted - frozenset(self._there(wanted))
        except TimeoutError:  # the brokers are away, and not a topic
            away = self.away
        self._wait_ms = min(LONGEST_LOOK_MS, 2 * self._wait_ms) if away and away <= self.away else FIRST_LOOK_MS
        self._next_look = self._monotonic_ms() + (self._wait_ms if away else LONGEST_LOOK_MS)
        for topic in sorted(away - self.away):
            log.warning("target topic %s does not exist: its units wait, `uow topics create` makes it", topic)
        for topic in sorted(self.away - away):
            log.warning("target topic %s is there: units that waited for it go", topic)
        self._known, self.away = wanted, away


NO_TARGETS: Final = TargetTopics(tuple, lambda topics: topics, lambda: 0.0)
"""Of a destination without rules."""


class WaitingRecords:
    """Records of units that wait for their topic, of one partition, in the order in which they are to leave.

    Attributes:
        memory_bytes: About what they take.
    """

    def __init__(self) -> None:
        self._records: dict[bytes, Output] = {}
        self._serial = 0
        self.memory_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def may_leave(self, away: Collection[str]) -> bool:
        """True if a record waits for a topic that is not away."""
        return any(output.topic not in away for output in self._records.values())

    def restore(self, rows: Mapping[bytes, bytes]) -> None:
        """Takes rows of the changelog. Raises `DecodeError`."""
        for key in sorted(rows):
            component = decode_component(rows[key])
            source = component.source
            self._add(key, Output(source.topic, source.partition, component.key, component.value, [*component.headers]))
        self._serial = max(map(serial_of, rows), default=0)

    def _add(self, key: bytes, output: Output) -> None:
        self._records[key] = output
        self.memory_bytes += RECORD_BYTES + len(output.value or b"")

    def exchange(self, plan: Plan, away: Collection[str]) -> int:
        """Takes the records of a plan out that must wait, and puts those in before the others that need not wait any longer.

        Returns:
            By how many rows the changelog grows.
        """
        if not self._records and not away:
            return 0
        leaving = [*self._leaving(away)]
        for key, output in leaving:
            del self._records[key]
            self.memory_bytes -= RECORD_BYTES + len(output.value or b"")
        plan.is_cut |= self.may_leave(away)
        held_back = {output.topic for output in self._records.values()} | {*away}
        outputs = [output for _, output in leaving]
        places: dict[int, int] = {}
        added = 0
        for index, output in enumerate(plan.outputs):
            if output.topic in held_back:
                self._serial += 1
                key = waiting_key(self._serial)
                self._add(key, output)
                plan.changelog.append((key, _encoded(output)))
                added += 1
            else:
                places[index] = len(outputs)
                outputs.append(output)
        plan.outputs[:] = outputs
        plan.external = {places[index]: each for index, each in plan.external.items()}
        plan.bare = {places[index]: each for index, each in plan.bare.items()}
        plan.changelog[:0] = [(key, None) for key, _ in leaving]
        return added - len(leaving)

    def _leaving(self, away: Collection[str]) -> Iterator[tuple[bytes, Output]]:
        size = 0
        for key, output in self._records.items():
            if output.topic not in away and size < LEAVE_BYTES:
                size += RECORD_BYTES + len(output.value or b"")
                yield key, output


def waiting_key(serial: int) -> bytes:
    """The key of the row of a record that waits: those of a partition leave in the order of their numbers."""
    return WAITING_KEY + serial.to_bytes(8, "big")


def serial_of(key: bytes) -> int:
    """The number in such a key."""
    return int.from_bytes(key[len(WAITING_KEY) :], "big")


def _encoded(output: Output) -> bytes:
    place = Source(output.topic, output.partition, 0)
    return encode_component(ComponentRecord(1, False, None, output.key, output.value, tuple(output.headers), 0, place))
