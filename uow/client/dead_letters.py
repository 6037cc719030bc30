"""Units that a reader does not hand out: expired before they were read, delivered in vain too often, or unreadable.

A unit goes to `D.errors` whole and unchanged, with the reasons behind its headers, in the transaction that moves the group's position past it.
That position waits until everything handed out before it is acknowledged. A reader without a group changes nothing: it writes no unit
anywhere, and keeps back only what cannot be read.

Belongs here: deciding which units are given up, and writing them away. Does not belong here: reading
(`uow.client.reader`), positions (`uow.client.ownership`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Final

from confluent_kafka import TopicPartition

from uow.client.consumption import Consumption
from uow.client.failure_policies import Policies
from uow.client.kafka_port import ConsumedRecord, Headers, coordinates
from uow.client.outgoing import OutgoingRecord
from uow.client.ownership import Ownership
from uow.client.transaction import Transaction
from uow.client.unfetchable import Gap
from uow.client.verdict import Failure, GivenUp, Verdict
from uow.errors import SendRejectedError
from uow.schemas.error_classes import DecodeError, UowError
from uow.schemas.records import Reason, Unit
from uow.topics import headers as names
from uow.topics.catalogue import HEADERS_LIMIT
from uow.topics.headers import is_unit
from uow.topics.policies import NO_LIMIT, ExceptionDestination, ExpirationPolicy
from uow.topics.record_size import record_size

log = logging.getLogger(__name__)

Part = tuple[ConsumedRecord, Headers]
"""A record of a unit, with its headers."""
Content = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers of a record."""

COPIED_BYTES: Final = 67_108_864
"""Most that is copied of one unit: more would outlast the time-out of a transaction. The default of `max_bytes`."""
_TAKEN_BYTES: Final = (COPIED_BYTES, 524_288, 0)
"""Most bytes of a record in `D.errors`: as many as the broker takes, then what any broker takes, then none of it."""
REASONS: Final = 5
"""Headers that say why."""
_MOVES_NOTHING: Final = (ExpirationPolicy.DISCARD, ExpirationPolicy.LOG)
"""`deliver_partial` moves: what has expired is never delivered (W-207)."""


def wall_ms() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


class DeadLetters:
    """The units that one reader gives up.

    Args:
        errors_topic: For units that a policy gives up.
        unreadable_topic: For records that cannot be read; None: they are passed over.
        ask: Gives the policies for expired units and redeliveries, once there is a unit to apply them to.
        take: Gives a transaction.
        give_back: Takes it back.
        on_given_up: Called with each unit given up.
        wall: Wall clock, epoch ms.

    Attributes:
        counts: Number of units given up, by reason.
    """

    def __init__(
        self,
        errors_topic: str,
        unreadable_topic: str | None,
        ask: Callable[[], Policies],
        take: Callable[[], Transaction],
        give_back: Callable[[Transaction], None],
        on_given_up: Callable[[GivenUp], object] | None = None,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self.counts: Counter[Failure] = Counter()
        self._errors_topic, self._unreadable_topic = errors_topic, unreadable_topic
        self._has_unreadable_topic = False
        self._ask = ask
        self._take, self._give_back = take, give_back
        self._on_given_up = on_given_up
        self._wall = wall

    def serve(self, consumption: Consumption) -> None:
        """Handles the units that this consumption gives up."""
        consumption.move = self.move
        consumption.skip = partial(self.cannot_be_fetched, consumption)

    @cached_property
    def policies(self) -> Policies:
        """Asked for when they are first needed."""
        return self._ask()

    def is_unit(self, headers: Headers) -> bool:
        """True if a record is a unit of the destination: its headers say so, and the destination forms units (W-65)."""
        return is_unit(headers) and self.policies.forms_units

    # -- which units are given up -------------------------------------------------------------------------------------------------

    def before_opening(self, offset: int, consumption: Consumption, ownership: Ownership) -> Verdict | None:
        """Counts one more delivery of the unit that begins at `offset`, or says that there were enough of them (W-87).

        Under a limit the count is committed before the unit is opened: it must outlive a consumer that the unit kills.

        Raises:
            NotYet: In the middle of a rebalance nothing can be counted: the unit comes again.
            UowError: The count cannot be committed; the unit comes again.
        """
        limit = NO_LIMIT if consumption.group is None or _stays(consumption) else self.policies.redelivery_limit
        failed = ownership.deliveries.of(offset)
        if limit != NO_LIMIT and failed > limit:
            text = f"delivered {failed} times and not acknowledged; redelivery_limit is {limit}"
            return Verdict(Failure.REDELIVERY_LIMIT, UowError, Reason.LIMIT.value, text)
        ownership.deliveries.count(offset)
        if limit != NO_LIMIT and not consumption.record_deliveries(ownership):
            raise NotYet
        return None

    def against(self, unit: Unit, consumption: Consumption) -> Verdict | None:
        """The reason why a unit that was opened is not handed out."""
        if consumption.group is None or not unit.expires_at or unit.expires_at >= self._wall():
            return None
        text = f"unit {unit.unit_id} of {unit.id!r} expired at {unit.expires_at}, before it was read"
        return Verdict(Failure.EXPIRED, UowError, Reason.COMPONENT_EXPIRED.value, text)

    # -- what becomes of it ----------------------------------------------------------------------------------------------

    def carry_out(
        self, verdict: Verdict, parts: Sequence[Part], consumption: Consumption, ownership: Ownership
    ) -> None:
        """Does with a unit what was said; all of it lies in `parts`."""
        self._dead_letter(verdict, parts, coordinates(parts[-1][0])[2], consumption, ownership)

    def cannot_be_read(
        self,
        error: DecodeError,
        parts: Sequence[Part],
        consumption: Consumption,
        ownership: Ownership,
        last: int | None = None,
    ) -> None:
        """A record that should be a unit and is none, a run that is broken, components that are not where they should be (W-12, W-117).

        Args:
            error: Says what is wrong.
            parts: The records that belong to it, as far as they are at hand.
            consumption: Its reader's.
            ownership: Its partition.
            last: Offset of its last record where that is not the last part.
        """
        end = coordinates(parts[-1][0])[2] if last is None else last
        self._dead_letter(
            Verdict(Failure.FAILED, type(error), error.case, error.detail), parts, end, consumption, ownership
        )

    def cannot_be_fetched(self, consumption: Consumption, ownership: Ownership, gap: Gap) -> None:
        """Records that no consumer gets to see: what goes to the errors topic says only where they lie."""
        verdict = Verdict(Failure.FAILED, DecodeError, "batch", str(gap))
        self._record(verdict, (*ownership.tp, gap.first), [(None, None, [])], gap.at - 1, consumption, ownership)

    def _dead_letter(
        self, verdict: Verdict, parts: Sequence[Part], last: int, consumption: Consumption, ownership: Ownership
    ) -> None:
        content = [(record.key(), record.value(), headers) for record, headers in parts]
        self._record(verdict, coordinates(parts[0][0]), content, last, consumption, ownership)

    def too_late(self, place: tuple[str, int, int], text: str, ownership: Ownership) -> None:
        """A single message that has expired before it was read: it is passed over."""
        ownership.pass_by(place[2])
        self._report(GivenUp(*place, None, Failure.EXPIRED, text, None), logging.WARNING)

    def _report(self, given_up: GivenUp, level: int) -> None:
        self.counts[given_up.failure] += 1
        log.log(level, "%s", given_up)
        if self._on_given_up is not None:
            self._on_given_up(given_up)

    def _record(
        self,
        verdict: Verdict,
        place: tuple[str, int, int],
        content: Sequence[Content],
        last: int,
        consumption: Consumption,
        ownership: Ownership,
    ) -> None:
        breaks_order = consumption.strict is not None and verdict.failure is not Failure.EXPIRED
        if breaks_order and _stays(consumption):
            consumption.block(ownership, place[2], verdict.text)
            return
        goes_to = self._where_to(verdict.failure, consumption) if consumption.group is not None else None
        records = [] if goes_to is None else _records(goes_to, verdict, place, content)
        if consumption.strict is not None and breaks_order:
            records.append(consumption.strict.gap(place[1], place[2], last, verdict.text))
        if records:
            ownership.add_dead_letter(records, place[2], last)
        else:
            ownership.pass_by(last)
        raw_id = next((value for name, value in content[0][2] if name == names.ID and value is not None), None)
        unit_id = None if raw_id is None else raw_id.decode("utf-8", "backslashreplace")
        given_up = GivenUp(*place, unit_id, verdict.failure, verdict.text, goes_to)
        self._report(given_up, self._level(verdict.failure))

    def _where_to(self, failure: Failure, consumption: Consumption) -> str | None:
        if failure is Failure.FAILED:
            topic = self._unreadable_topic
            if topic is None or self._has_unreadable_topic or consumption.has_topic(topic):
                self._has_unreadable_topic = True
                return topic
            log.error("there is no topic %s for records that cannot be read: `uow topics create` makes it", topic)
            return None
        if failure is Failure.EXPIRED and self.policies.expiration_policy in _MOVES_NOTHING:
            return None
        return self._errors_topic

    def _level(self, failure: Failure) -> int:
        if failure is Failure.EXPIRED and self.policies.expiration_policy is ExpirationPolicy.DISCARD:
            return logging.INFO
        return logging.WARNING

    def move(self, records: Sequence[OutgoingRecord], rows: Sequence[TopicPartition], token: Any) -> None:
        """Writes records and commits positions in one transaction. Of a record that the broker refuses only the reasons are written.

        Raises:
            StaleGeneration: The consumer group moved on; nothing is visible.
            UowError: As `Transaction.commit`.
        """
        for most in _TAKEN_BYTES:
            try:
                self._write([_bounded(record, most) for record in records], rows, token)
            except SendRejectedError as refused:
                if most == _TAKEN_BYTES[-1]:
                    raise
                log.warning(
                    "the broker refuses the records themselves, their values stay where they are: %s", str(refused)
                )
            else:
                return

    def _write(self, records: Sequence[OutgoingRecord], rows: Sequence[TopicPartition], token: Any) -> None:
        transaction = self._take()
        try:
            transaction.begin()
            for record in records:
                transaction.produce(record)
            transaction.commit(rows, token)
        finally:
            self._give_back(transaction)


def _stays(consumption: Consumption) -> bool:
    """True if what fails stays, and blocks its partition (S-14)."""
    return consumption.strict is not None and (
        consumption.strict.rules.exception_destination is ExceptionDestination.NONE
    )


def _records(
    topic: str, verdict: Verdict, place: tuple[str, int, int], content: Sequence[Content]
) -> list[OutgoingRecord]:
    """The unit as it was, each record with the reasons behind its headers. Of one that is too large for a transaction the first only."""
    text, size = verdict.text, sum(record_size(*each) for each in content)
    if size > COPIED_BYTES:
        content, text = content[:1], f"{text}; {len(content)} records from there on, {size} bytes, stay where they are"
    why: Headers = [
        (names.ERROR_CLASS, verdict.error.__name__.encode()),
        (names.ERROR_CASE, verdict.case.encode()),
        (names.ERROR_TEXT, text.encode("utf-8", "backslashreplace")),
        (names.SOURCE, "/".join(map(str, place)).encode()),
        (names.FAILURE_REASON, verdict.failure.encode()),
    ]
    return [OutgoingRecord(topic, key, value, headers + why) for key, value, headers in content]


def _bounded(record: OutgoingRecord, most_bytes: int) -> OutgoingRecord:
    """The record, or only the reasons for it and its place if it has more bytes."""
    if len(record.headers) <= HEADERS_LIMIT and record_size(record.key, record.value, record.headers) <= most_bytes:
        return record
    why = record.headers[-REASONS:]
    headers = [*why, (names.ERROR_VALUE, b"too large, it stays at " + (dict(why)[names.SOURCE] or b""))]
    return OutgoingRecord(record.topic, None, None, headers)


class NotYet(Exception):
    """A unit cannot be counted in the middle of a rebalance; it comes again. Never leaves `uow`."""
