"""Units that a reader does not hand out: expired before they were read, delivered in vain too often, or not to be put together.

What goes to `D.errors` goes whole, as it was, with the reasons behind its headers; in the same transaction the group's position moves
behind it. That waits until everything handed out before it is acknowledged, so that the position never passes an open unit.

Belongs here: who is given up, and moving it. Does not belong here: reading (`uow.reader`), positions (`uow.consumption`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import TopicPartition

from schemas.errors import DecodeError, UowError
from schemas.records import Reason, Unit
from topics import headers as names
from topics.policies import NO_LIMIT, ExpirationPolicy
from uow.component import OutgoingRecord
from uow.consumption import Consumption, Ownership
from uow.handles import ConsumedRecord, Headers, coordinates
from uow.transaction import StaleGeneration, Transaction

log = logging.getLogger(__name__)

Part = tuple[ConsumedRecord, Headers]
"""A record of a unit, with its headers."""


_EXPIRED: Final = b"expired"
_MOVES_NOTHING: Final = (ExpirationPolicy.DISCARD, ExpirationPolicy.LOG)
"""`deliver_partial` moves: what has expired is never delivered (W-207)."""


def wall_ms() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


class Verdict(NamedTuple):
    """Why a unit is given up: `uow-failure-reason`, and class, case and text as of any error."""

    failure: bytes
    error: type[UowError]
    case: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    """A unit on its way to `D.errors`; `after` was handed out last before it."""

    records: Sequence[OutgoingRecord]
    consumption: Consumption
    ownership: Ownership
    first: int
    last: int
    after: int
    token: Any


class GivingUp:
    """What the settings of one reader say.

    Args:
        errors_topic: `D.errors`.
        expiration_policy: What becomes of a unit whose `uow-expires-at` has passed (W-86).
        redelivery_limit: How many redeliveries may fail (W-87); `NO_LIMIT` for any number.
        take: Gives a transaction.
        give_back: Takes it back.
        wall: Wall clock, epoch ms.
    """

    def __init__(
        self,
        errors_topic: str,
        expiration_policy: ExpirationPolicy,
        redelivery_limit: int,
        take: Callable[[], Transaction],
        give_back: Callable[[Transaction], None],
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self._errors_topic = errors_topic
        self._expiration_policy, self._limit = expiration_policy, redelivery_limit
        self._take, self._give_back = take, give_back
        self._wall = wall
        self._waiting: list[_Move] = []

    def against(
        self, unit: Unit, record: ConsumedRecord, consumption: Consumption, ownership: Ownership
    ) -> Verdict | None:
        """Why a unit, whose first record this is, is not handed out. Whoever reads without a group only looks, and sees everything."""
        if consumption.group is None:
            return None
        if unit.expires_at and unit.expires_at < self._wall():
            text = f"unit {unit.unit_id} of {unit.id!r} expired at {unit.expires_at}, before it was read"
            return Verdict(_EXPIRED, UowError, Reason.COMPONENT_EXPIRED.value, text)
        failed = ownership.deliveries_of(coordinates(record)[2])
        if self._limit != NO_LIMIT and failed > self._limit:
            text = f"delivered {failed} times and not acknowledged; redelivery_limit is {self._limit}"
            return Verdict(b"redelivery-limit", UowError, Reason.LIMIT.value, text)
        return None

    def carry_out(
        self, verdict: Verdict, parts: Sequence[Part], consumption: Consumption, ownership: Ownership
    ) -> None:
        """Does with a unit what was said. One that is neither moved nor handed out is done with as a plain record is.

        Raises:
            UowError: As a commit; nothing of it is visible, and the unit comes again.
        """
        if verdict.failure == _EXPIRED and self._expiration_policy in _MOVES_NOTHING:
            level = logging.WARNING if self._expiration_policy is ExpirationPolicy.LOG else logging.DEBUG
            log.log(level, "%s: %s", "/".join(map(str, coordinates(parts[0][0]))), verdict.text)
            return
        self._move(verdict, parts, consumption, ownership, ownership.handed_out)

    def cannot_be_read(
        self,
        error: DecodeError,
        parts: Sequence[Part],
        consumption: Consumption,
        ownership: Ownership,
        after: int,
    ) -> None:
        """A unit whose components are not where they should be (W-117); `after` was handed out last before it. Raises as `carry_out`."""
        if consumption.group is not None:
            verdict = Verdict(b"failed", DecodeError, error.case, error.detail)
            self._move(verdict, parts, consumption, ownership, after)

    def _move(
        self, verdict: Verdict, parts: Sequence[Part], consumption: Consumption, ownership: Ownership, after: int
    ) -> None:
        topic, partition, first = coordinates(parts[0][0])
        why: Headers = [
            (names.ERROR_CLASS, verdict.error.__name__.encode()),
            (names.ERROR_CASE, verdict.case.encode()),
            (names.ERROR_TEXT, verdict.text.encode("utf-8", "backslashreplace")),
            (names.SOURCE, f"{topic}/{partition}/{first}".encode()),
            (names.FAILURE_REASON, verdict.failure),
        ]
        records = [
            OutgoingRecord(self._errors_topic, record.key(), record.value(), headers + why) for record, headers in parts
        ]
        last = coordinates(parts[-1][0])[2]
        self._waiting.append(_Move(records, consumption, ownership, first, last, after, consumption.token()))
        self.settle()

    def settle(self) -> None:
        """Moves what waits no longer; what comes again is forgotten."""
        waiting, self._waiting = self._waiting, []
        for move in waiting:
            if not move.consumption.is_ours(move.ownership, move.first) or move.last < move.ownership.acknowledged:
                continue
            if move.after >= move.ownership.acknowledged:
                self._waiting.append(move)
            else:
                self._commit(move)

    def _commit(self, move: _Move) -> None:
        transaction = self._take()
        try:
            transaction.begin()
            for record in move.records:
                transaction.produce(record)
            transaction.commit([TopicPartition(*move.ownership.tp, move.last + 1)], move.token)
        except StaleGeneration as stale:
            log.info("the group moved on, the unit comes again: %s", stale)
            move.ownership.go_back(move.first)
        except BaseException:
            move.ownership.go_back(move.first)
            raise
        else:
            move.ownership.settle(move.last + 1)
        finally:
            self._give_back(transaction)
