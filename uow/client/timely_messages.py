"""Single messages in time: none before its `uow-deliver-at`, none after its `uow-expires-at` (W-08, W-53).

A message that came too early is kept, alone of its partition, which is paused behind it: what comes after it must not overtake it, since
acknowledging is cumulative. The others are read on, and polls go on, so that waiting costs no reader its place in the group.

Belongs here: `MessageReader`, and which messages are in time. Does not belong here: the waiting and reading of any reader
(`uow.client.reader`), and times of whole units
(`uow.client.dead_letters`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from uow.client.consumption import Consumption
from uow.client.dead_letters import DeadLetters, wall_ms
from uow.client.kafka_port import ConsumedRecord, Headers, coordinates
from uow.client.ownership import Ownership, Tp
from uow.client.reader import MessageInterpreter, Reader, message_of
from uow.client.received import Message
from uow.client.unshown_headers import UnshownHeaders
from uow.client.verdict import Failure
from uow.schemas.codec import SchemaSource
from uow.topics.headers import (
    DELIVER_AT,
    EXPIRES_AT,
    Reading,
    decimal,
)

log = logging.getLogger(__name__)

LONGEST_WAIT_MS: Final = 86_400_000
"""A message that is to be delivered later than this from now is not waited for: any writer of a topic could stop its readers for ever."""

FAR_MS: Final = 1 << 62
OnExpired = Callable[[Message], object]


class _Early(NamedTuple):
    """A message that came too early.

    Attributes:
        until: The moment of its next check, epoch ms.
    """

    record: ConsumedRecord
    ownership: Ownership
    until: int


class InTime(MessageInterpreter):
    """Interpreter of single messages; knows the reader's consumption, and not the reader, which may be abandoned.

    Args:
        reading: How headers are read.
        dead_letters: Hears of what is not handed out.
        hidden: Knows of headers that the client does not show.
        registry: For units of another destination in a message.
        on_expired: Is given each message that has expired; without it, it is passed over.
        longest_wait_ms: For a message that came too early.
        wall: Wall clock, epoch ms.

    Attributes:
        hurried: How many were handed out too early, since they are to be delivered later than the longest wait from now.
    """

    def __init__(
        self,
        reading: Reading,
        dead_letters: DeadLetters,
        hidden: UnshownHeaders,
        registry: SchemaSource | None,
        on_expired: OnExpired | None,
        longest_wait_ms: int,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        super().__init__(dead_letters, hidden, registry)
        self.hurried = 0
        self._reading, self._on_expired, self._longest_wait_ms, self._wall = reading, on_expired, longest_wait_ms, wall
        self._early: dict[Tp, _Early] = {}

    def message(
        self, record: ConsumedRecord, headers: Headers, consumption: Consumption, ownership: Ownership
    ) -> Message | None:
        """The message, if this is its time."""
        values, now = self._reading.properties(headers), self._wall()
        expires_at, deliver_at = _moment(values.get(EXPIRES_AT)), _moment(values.get(DELIVER_AT))
        if expires_at and expires_at < now:
            self._expire(record, headers, expires_at, consumption, ownership)
            return None
        if now < deliver_at <= now + self._longest_wait_ms:
            consumption.hold_back(ownership)
            until = min(deliver_at, expires_at + 1) if expires_at else deliver_at
            self._early[ownership.tp] = _Early(record, ownership, until)
            return None
        if deliver_at > now:
            self.hurried += 1
            text = "%s/%d/%d is to be delivered at %d, too far ahead to wait for: handed out now"
            log.warning(text, *coordinates(record), deliver_at)
        return super().message(record, headers, consumption, ownership)

    def _expire(
        self,
        record: ConsumedRecord,
        headers: Headers,
        expires_at: int,
        consumption: Consumption,
        ownership: Ownership,
    ) -> None:
        place = coordinates(record)
        if self._on_expired is not None:
            try:
                self._on_expired(message_of(record, headers, consumption, ownership, self._registry))
            except BaseException:
                ownership.go_back(place[2])
                raise
        self._dead_letters.too_late(place, f"expired at {expires_at}, before it was read", ownership)

    def take(self, consumption: Consumption) -> tuple[ConsumedRecord, Ownership] | None:
        """One of those kept whose time has come; its partition is read on."""
        now = self._wall()
        for tp, early in self._early.items():
            record, ownership, until = early
            is_read_again = ownership.rewind is not None or not consumption.is_ours(ownership, coordinates(record)[2])
            if until <= now and not is_read_again:
                self.forget(tp, consumption)
                return record, ownership
        return None

    def wait_s(self) -> float:
        """Time until the next of those kept is checked again."""
        return max(0.0, (min((early.until for early in self._early.values()), default=FAR_MS) - self._wall()) / 1000)

    def forget(self, tp: Tp, consumption: Consumption) -> None:
        """Nothing is kept of a partition any more: it goes, is read again from before, or what was kept is handed out."""
        if self._early.pop(tp, None) is not None:
            consumption.let_go(tp)


class MessageReader(Reader[Message]):
    """A reader of single messages (`Connection.messages`).

    Args:
        consumption: Where it reads.
        in_time: Tells whose time has come.
        given_up: Number of messages not handed out, by reason.
        clock: Seconds, from anywhere.
    """

    def __init__(
        self,
        consumption: Consumption,
        in_time: InTime,
        given_up: Counter[Failure],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(consumption, in_time, given_up, clock)
        consumption.on_move = partial(in_time.forget, consumption=consumption)
        self._in_time = in_time

    @property
    def hurried(self) -> int:
        """Number of messages handed out too early, since they are to be delivered later than the longest wait from now."""
        return self._in_time.hurried

    def _poll(self, timeout: float) -> tuple[ConsumedRecord, Ownership] | None:
        self._consumption.require_open()
        early = None if self._consumption.is_cut_off else self._in_time.take(self._consumption)
        return early or super()._poll(min(timeout, self._in_time.wait_s()))


def _moment(raws: list[bytes | None] | None) -> int:
    """Epoch ms; 0 for none, and for what is no time: the destination refuses that, a reader on the way does not judge."""
    return decimal((raws[0] if raws else None) or b"") or 0
