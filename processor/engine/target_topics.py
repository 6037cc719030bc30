"""Topics that rules name and that cannot be written to now, and the units and cancel notices that wait for them (B-57, B-209).

A record for a topic that does not exist, that may not be written to, or has too few replicas in sync would hold up the transaction of all partitions
until it fails. So the topics are looked at from time to time; a unit for such a one waits as a row of the groups' changelog, with everything it is, while its partition goes on. Units of one
target leave in the order in which their groups closed. Cancel notices wait as well, up to a number: what they tell is of less use every minute.

A record that its topic refuses for what it is, too large for example, does not wait: a unit by rule is given up after some attempts (B-89), any other
at once. The plan that is made again does without it (`task`, `outputs`).

Belongs here: which topics are away, when to look again, those units, and what is refused. Does not belong here: asking brokers (`uow.processor.kafka`), and
making plans (`task`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from typing import Final

from uow.processor.core.happened import Counts
from uow.processor.engine.ports import Output, Plan
from uow.schemas.component import decode_component, encode_component
from uow.schemas.records import ComponentRecord, Source
from uow.topics.grouping import MAX_ATTEMPTS
from uow.topics.headers import ERROR_CLASS, ERROR_VALUE, ID, KIND, KIND_UNIT, RULE, UNIT_ID
from uow.topics.manifests import KIND_NOTICE
from uow.topics.output import CancelNotice

log = logging.getLogger("uow.targets")

FIRST_LOOK_MS: Final = 1_000
"""Until the next look while a topic is missing; twice as long each time."""
LONGEST_LOOK_MS: Final = 30_000
"""Between two looks at most, also while all are there."""
WAITING_KEY: Final = b"\x05"
"""Begins the key of a row of the changelog: a record that waits for its topic."""
LEAVE_BYTES: Final = 8 * 1024 * 1024
"""Most that one plan writes of what has waited."""
MOST_REFUSED: Final = 10_000
"""Records whose refusals are counted at a time. With one more all counts begin anew, and smaller batches are tried."""
WAITING_ATTEMPTS: Final = 5
"""How often a unit that had waited is tried, and refused for what it is: its group is closed, and its row says no more."""
SILENCE_MS: Final = 600_000
"""For so long a topic that refused a cancel notice for what it is gets none: the next would be refused as well, and each costs a transaction."""
MOST_NOTICES: Final = 1_000
"""Cancel notices of a partition that wait at a time; further ones are dropped."""
RECORD_BYTES: Final = 1_600
"""Memory of such a record beside its value: its headers, mostly."""


class TargetTopics:
    """Which of the target topics are away. For the driver's thread; `away` for any.

    Args:
        wanted: Returns the target topics of all rows that are known.
        obstacles: Returns for those of these topics that cannot be written to why not; raises `TimeoutError` if no broker answers.
        monotonic_ms: Milliseconds, from anywhere.

    Attributes:
        away: Topics that cannot be written to, as far as they were looked at.
        partitions: How many partitions topics have, as far as they were looked at.
        refusals: Number of refusals of a record or unit that was refused for what it is; mostly empty, which costs nothing to see.
        read_limit: Returns the largest record that a topic takes, bytes; None: it is not known. Asked once such a one was too large.
    """

    def __init__(
        self,
        wanted: Callable[[], Collection[str]],
        obstacles: Callable[[Collection[str]], Mapping[str, str]],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._wanted, self._obstacles, self._monotonic_ms = wanted, obstacles, monotonic_ms
        self._known: frozenset[str] = frozenset()
        self._next_look, self._wait_ms = 0.0, FIRST_LOOK_MS
        self.away: frozenset[str] = frozenset()
        self.partitions: dict[str, int] = {}
        self.refusals: dict[bytes, int] = {}
        self._why_too_large: dict[bytes, str] = {}
        self.read_limit: Callable[[str], int | None] = lambda topic: None
        self._silent_until: dict[str, float] = {}

    def refuse(self, output: Output, *, is_too_large: bool = False) -> bool:
        """A record was refused for what it is. False if somebody has to look at it: it was given up already, and what took its place is refused.

        One that is too large will not be smaller at the next attempt: it is given up at once (B-89).
        """
        if isinstance(output, CancelNotice):
            self._silent_until[output.topic] = self._monotonic_ms() + SILENCE_MS
            log.warning("%s refuses cancel notices: it gets none for %d s", output.topic, SILENCE_MS // 1000)
            return True
        said, what = dict(output.headers), identity(output)
        attempts = self.refusals[what] = self.refusals.get(what, 0) + 1
        if is_too_large:
            self.refusals[what] = attempts + MAX_ATTEMPTS
            self._why_too_large[what] = self._too_large(output)
        why = self._why_too_large.get(what, "for what it is")
        log.warning("a record of %r is refused by %s, attempt %d: %s", said.get(ID), output.topic, attempts, why)
        if len(self.refusals) > MOST_REFUSED:
            self.refusals.clear()
            self._why_too_large.clear()
            return False
        return attempts == 1 or (said.get(KIND) == KIND_UNIT and RULE in said)

    def is_given_up(self, outputs: Collection[Output], attempts: int = 1) -> bool:
        """True if one of these, or of the unit that they are of, was refused so many times."""
        refusals = self.refusals
        return bool(refusals) and any(refusals.get(identity(output), 0) >= attempts for output in outputs)

    def _too_large(self, output: Output) -> str:
        headers = sum([len(name) + len(value or b"") for name, value in output.headers])
        size, limit = len(output.key or b"") + len(output.value or b"") + headers, self.read_limit(output.topic)
        takes = "takes none so large" if limit is None else f"takes records of {limit} bytes"
        return f"its record has {size} bytes before compression, and topic {output.topic} {takes}"

    def why_too_large(self, outputs: Collection[Output]) -> str:
        """Size, topic and limit of the first of these that was refused for its size; empty if none was."""
        return next(filter(None, [self._why_too_large.get(identity(output), "") for output in outputs]), "")

    def takes_notices(self, topic: str) -> bool:
        """False for a while after a cancel notice was refused there for what it is."""
        return self._monotonic_ms() >= self._silent_until.get(topic, -math.inf)

    def look(self, *, at_once: bool = False) -> None:
        """Looks, if it is time, or if a topic is new; `at_once` in any case, for a transaction has failed."""
        wanted = frozenset(self._wanted())
        if not wanted or not (at_once or wanted - self._known or self._monotonic_ms() >= self._next_look):
            return
        try:
            obstacles = self._obstacles(wanted)
        except TimeoutError:  # the brokers are away, and not a topic
            obstacles = dict.fromkeys(self.away, "")
        away = frozenset(obstacles)
        self._wait_ms = min(LONGEST_LOOK_MS, 2 * self._wait_ms) if away and away <= self.away else FIRST_LOOK_MS
        self._next_look = self._monotonic_ms() + (self._wait_ms if away else LONGEST_LOOK_MS)
        for topic in sorted(away - self.away):
            log.warning("target topic %s %s; its records wait", topic, obstacles[topic])
        for topic in sorted(self.away - away):
            log.warning("target topic %s can be written to: records that waited for it go", topic)
        self._known, self.away = wanted, away


def no_targets() -> TargetTopics:
    """Those of a worker without rules."""
    return TargetTopics(tuple, lambda topics: {}, lambda: 0.0)


def identity(output: Output) -> bytes:
    """The same each time that a plan is made: the id of a unit (W-90), else the content. Of a component that is given up the value may come later (W-117)."""
    said = dict(output.headers)
    if said.get(KIND) == KIND_UNIT and (unit_id := said.get(UNIT_ID)) is not None:
        return unit_id
    headers = [each for each in output.headers if each[0] != ERROR_VALUE]  # says that the value did not come
    content = output._replace(value=None, headers=headers) if ERROR_CLASS in said else output
    return sha256(repr(content).encode()).digest()


class WaitingRecords:
    """Records of units that wait for their topic, of one partition, in the order in which they are to leave.

    Attributes:
        memory_bytes: About what they take.
    """

    def __init__(self) -> None:
        self._records: dict[bytes, Output] = {}
        self._serial = self._notices = 0
        self.memory_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def outputs(self) -> list[Output]:
        """Those of units, in the order in which they are to leave. A unit that is written as a run has several."""
        return [output for output in self._records.values() if not isinstance(output, CancelNotice)]

    def may_leave(self, targets: TargetTopics) -> bool:
        """True if a record waits for a topic that is not away, and that does not refuse it."""
        return any(
            output.topic not in targets.away and not _stays(output, targets) for output in self._records.values()
        )

    def restore(self, rows: Mapping[bytes, bytes]) -> None:
        """Takes rows of the changelog. Raises `DecodeError`."""
        for key in sorted(rows):
            component = decode_component(rows[key])
            source = component.source
            kind = CancelNotice if (KIND, KIND_NOTICE) in component.headers else Output  # units alone wait beside them
            self._add(key, kind(source.topic, source.partition, component.key, component.value, [*component.headers]))
        self._serial = max(map(serial_of, rows), default=0)

    def _add(self, key: bytes, output: Output) -> None:
        self._records[key] = output
        self._account(output, 1)

    def _account(self, output: Output, sign: int) -> None:
        self.memory_bytes += sign * (RECORD_BYTES + len(output.value or b""))
        self._notices += sign * isinstance(output, CancelNotice)

    def exchange(self, plan: Plan, targets: TargetTopics, counts: Counts, *, keeps: bool = False) -> int:
        """Takes the records of a plan out that must wait, and puts those in before the others that need not wait any longer.

        One that its topic refuses for what it is stays until the next start, a notice for `SILENCE_MS`, and others pass it. Cancel notices that are too many are dropped, and counted.

        Args:
            plan: The plan.
            targets: Which topics are away.
            counts: Of the partition.
            keeps: True if none leaves with this plan.

        Returns:
            By how many rows the changelog grows.
        """
        away = targets.away
        if not self._records and not away:
            return 0
        leaving = [] if keeps else [*self._leaving(targets)]
        for key, output in leaving:
            del self._records[key]
            self._account(output, -1)
        plan.is_cut |= self.may_leave(targets)
        held_back = {output.topic for output in self._records.values() if not _stays(output, targets)} | away
        outputs = [output for _, output in leaving]
        places: dict[int, int] = {}
        added = 0
        for index, output in enumerate(plan.outputs):
            if output.topic in held_back and self._notices >= MOST_NOTICES and isinstance(output, CancelNotice):
                counts.dropped_notices += 1
            elif output.topic in held_back:
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

    def _leaving(self, targets: TargetTopics) -> Iterator[tuple[bytes, Output]]:
        size = 0
        for key, output in self._records.items():
            if output.topic not in targets.away and size < LEAVE_BYTES and not _stays(output, targets):
                size += RECORD_BYTES + len(output.value or b"")
                yield key, output


def _stays(output: Output, targets: TargetTopics) -> bool:
    if isinstance(output, CancelNotice):
        return not targets.takes_notices(output.topic)
    has_no_place = output.partition >= targets.partitions.get(output.topic, output.partition + 1)
    return has_no_place or targets.is_given_up([output], WAITING_ATTEMPTS)


def waiting_key(serial: int) -> bytes:
    """The key of the row of a record that waits: those of a partition leave in the order of their numbers."""
    return WAITING_KEY + serial.to_bytes(8, "big")


def serial_of(key: bytes) -> int:
    """The number in such a key."""
    return int.from_bytes(key[len(WAITING_KEY) :], "big")


def _encoded(output: Output) -> bytes:
    place = Source(output.topic, output.partition, 0)
    return encode_component(ComponentRecord(1, False, None, output.key, output.value, tuple(output.headers), 0, place))
