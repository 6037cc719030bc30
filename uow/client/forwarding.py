"""A forwarding hop: what travels on with a message, and output and input position in one transaction.

Belongs here: which headers are copied (W-55 to W-60, W-63), which key a hop sends under (W-59), and the transaction of a hop. Does not
belong here: reading (`uow.client.consumption`), a single transaction's life (`uow.client.transaction`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from confluent_kafka import TopicPartition

from uow.client.kafka_port import Headers
from uow.client.nesting import outer_headers
from uow.client.outgoing import (
    HeaderPairs,
    OutgoingRecord,
    Value,
    check_conflict,
    header_pairs,
    value_bytes,
)
from uow.client.ownership import Ownership, Tp
from uow.client.received import Message
from uow.client.session_state import Life, Patience
from uow.client.transaction import INTERRUPTED, Transaction
from uow.errors import CommitOutcomeUnknownError, CommitPendingError, OrderConfigError
from uow.processor.engine.ports import StaleGeneration
from uow.schemas.error_classes import BadSequenceNumberError, BadUnitIdError, FencedError, UowError
from uow.topics.headers import (
    ALIASES,
    END,
    ERROR_ONLY,
    HOPS,
    ID,
    ORIGIN_TS,
    REROUTED,
    SEQ,
    Marks,
    Reading,
    Refusal,
    from_origin,
    is_unit,
    only_units_carry,
)
from uow.topics.policies import AliasFamily

log = logging.getLogger(__name__)

_MARKS: Final = frozenset({ID, SEQ, END})
_OWN_NAMES: Final = frozenset(AliasFamily) - {AliasFamily.SPRING, AliasFamily.NIFI_FROM_1}
"""Families whose spellings of id, number and end mark nobody uses for anything else."""
_NEVER_COPIED: Final = ERROR_ONLY | {REROUTED}


OutputPlace = tuple[str, int, str, int]
"""Topic and partition of the input, topic and partition of the output; -1 where the library chooses the partition."""


class Keep(StrEnum):
    """Stands for "as it came" where None means null."""

    AS_IT_CAME = "as it came"


class Forwarded(StrEnum):
    """The result of forwarding a message."""

    COMMITTED = "committed"
    """Output and input position are committed together."""
    PENDING = "pending"
    """In an open transaction that the reader commits soon (`commit_interval_ms`)."""
    AGAIN = "again"
    """Nothing was sent: its partition went to another member, or a rebalance interrupted it. The message comes again, there or here."""


class Reassign(StrEnum):
    """Permission for a forwarder to change the marks of a component (W-63)."""

    NEVER = "never"
    ALLOWED = "allowed"


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The headers that stay behind at a hop (W-56).

    Attributes:
        only: Nothing but these travels on, and what starts with `uow-` or `uoo-`, and alias spellings; None: everything.
        leave_out: These do not.
    """

    only: frozenset[str] | None = None
    leave_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, only: Iterable[str] | None, leave_out: Iterable[str]) -> Narrowing:
        """As given to `forward`.

        Raises:
            TypeError: A text in place of several names.
        """
        if isinstance(only, str) or isinstance(leave_out, str):
            raise TypeError("only= and leave_out= take several header names")
        return cls(None if only is None else frozenset(only), frozenset(leave_out))

    def applied(self, headers: Headers, marks: Mapping[str, str], reading: Reading) -> Headers:
        """The headers that are left."""
        return [
            (name, value)
            for name, value in headers
            if name not in self.leave_out
            and (self.only is None or name in self.only or name in marks or not reading.is_user_header(name))
        ]


def forwarded_headers(
    message: Message, changes: Headers, reassign: Reassign, reading: Reading, narrowing: Narrowing = Narrowing()
) -> Headers:
    """The headers a message travels on with.

    All are copied byte for byte and in order, repeats included. Headers that only refused records or finished units carry are left out, unless
    the message is a finished unit itself (W-56, W-96). A unit that stands for a component becomes that component, also where it passed through
    a destination on its way (W-205). `narrowing` leaves some behind. `changes` replace headers of the same name where they stand, or are added.
    A component also gets this topic in `uow-hops` and, the first time, its timestamp as `uow-origin-ts` (W-56, W-60); plain traffic gets
    nothing (W-58).

    Raises:
        BadUnitIdError, BadSequenceNumberError: `changes` or `narrowing` would alter id, number or end mark, in whichever spelling, and
            `reassign` does not allow it (W-63).
        UnitConflictError: `uow-id` and `uoo-name` on one message (W-33).
    """
    sent = from_origin(message.headers)
    came = (outer_headers(sent) if is_unit(sent) else None) or message.headers
    is_dropped = _is_never_copied if _is_no_component(came, reading) else _is_left_out
    headers = [pair for pair in came if not is_dropped(pair[0])]
    marks = _spellings(came, reading)
    if reassign is Reassign.NEVER:
        _refuse_reassignment(came, changes, narrowing.leave_out, marks, reading)
    headers = _changed(narrowing.applied(headers, marks, reading), changes)
    check_conflict(headers, reading.families)
    if reading.read(headers) is None:
        return headers
    hops = b",".join([value or b"" for name, value in headers if name == HOPS] + [message.topic.encode()])
    headers = _changed(headers, [(HOPS, hops)])
    if all(name != ORIGIN_TS for name, _ in headers):
        headers.append((ORIGIN_TS, b"%d" % message.timestamp))
    return headers


def _is_never_copied(name: str) -> bool:
    return name in _NEVER_COPIED or name.startswith("uow-error-")


def _is_left_out(name: str) -> bool:
    return _is_never_copied(name) or only_units_carry(name)


def _is_no_component(headers: Headers, reading: Reading) -> bool:
    """True for a finished unit, which has an id in our own spelling and a number in none that is read here."""
    return is_unit(headers) and ID in dict(headers) and SEQ not in reading.properties(headers)


def _spellings(came: Headers, reading: Reading) -> Mapping[str, str]:
    """Names under which id, number and end mark may stand, and which of them each is.

    Ours, and those of other systems, whether or not this connection reads them, for a later hop may. Spring's are anybody's names: they count
    where this connection reads them as marks.
    """
    families = set(_OWN_NAMES)
    if AliasFamily.SPRING in reading.families and any(name == "sequenceNumber" for name, _ in came):
        families.add(AliasFamily.SPRING)
    aliases = [pair for family in families for pair in ALIASES[family].items() if pair[1] in _MARKS]
    return {name: name for name in _MARKS} | dict(aliases)


def _refuse_reassignment(
    came: Headers, changes: Headers, leave_out: frozenset[str], marks: Mapping[str, str], reading: Reading
) -> None:
    """A header that repeats the same value is allowed, in whichever spelling."""
    native = Reading(_OWN_NAMES | reading.families).native
    said = {(marks[name], native(name, value)) for name, value in came if name in marks}
    for name, value in changes:
        if name in marks and (marks[name], native(name, value)) not in said:
            raise _reassigned(marks[name], f"change {name} to {value!r}")
    for name, _ in came:
        if name in marks and name in leave_out:
            raise _reassigned(marks[name], f"leave out {name}")


def _reassigned(mark: str, what: str) -> UowError:
    text = f"forward() would {what}; reassign=True allows it"
    if mark == ID:
        return BadUnitIdError(text)
    return BadSequenceNumberError(text, case="malformed" if mark == SEQ else "malformed-end")


def _changed(headers: Headers, changes: Headers) -> Headers:
    """Headers with the changed ones in the place of the first of that name, or at the end."""
    new: dict[str, Headers] = {}
    for pair in changes:
        new.setdefault(pair[0], []).append(pair)
    changed: Headers = []
    placed: set[str] = set()
    for pair in headers:
        if pair[0] not in new:
            changed.append(pair)
        elif pair[0] not in placed:
            placed.add(pair[0])
            changed.extend(new[pair[0]])
    return changed + [pair for name, pairs in new.items() if name not in placed for pair in pairs]


def key_at_destination(message: Message, headers: Headers, reading: Reading) -> bytes | None:
    """The raw id for a component, whatever key it came under (W-59); plain traffic keeps its own."""
    marks = reading.read(headers)
    if isinstance(marks, Marks):
        return marks.id
    if isinstance(marks, Refusal) and marks.id is not None:
        return marks.id
    return message.key


def forwarded_record(
    message: Message,
    topic: str,
    at_destination: bool,
    value: Value | Keep,
    headers: HeaderPairs,
    reassign: Reassign,
    reading: Reading,
    narrowing: Narrowing,
) -> OutgoingRecord:
    """The record that a hop sends for a message. Raises like `forwarded_headers`."""
    onward = forwarded_headers(message, header_pairs(headers), reassign, reading, narrowing)
    key = key_at_destination(message, onward, reading) if at_destination else message.key
    return OutgoingRecord(topic, key, message.value if value is Keep.AS_IT_CAME else value_bytes(value), onward)


def _offset(message: Message) -> int:
    return message.offset


class HopReader(Protocol):
    """The calls of a hop to its reader."""

    commit_interval_ms: int
    life: Life
    group: str | None
    is_doubtful: bool

    def before_commit(self) -> None: ...
    def fenced(self, failure: FencedError) -> None: ...
    def doubt(self) -> None: ...


class Hop:
    """The transactions of one reader that forwards: outputs and consumed positions are committed together.

    With an interval of 0 each forwarded message is a transaction. Else one stays open up to the interval, or until no message waits.
    A rolled back transaction takes the reader back to the first message in it. A commit that is not answered while no broker is there goes on,
    and is asked for again before anything else is done (R-63); where its outcome cannot be told, the reader asks for the committed offsets (ER-12).
    """

    def __init__(
        self,
        transaction: Transaction,
        give_back: Callable[[Transaction], None],
        reader: HopReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transaction = transaction
        self._give_back = give_back
        self._reader = reader
        self._interval_s = reader.commit_interval_ms / 1000
        self._clock = clock
        self._deadline = 0.0
        self._messages: dict[Tp, tuple[Message, Message]] = {}
        """First and last message of the open transaction, by partition."""
        self._rows: list[tuple[Ownership, TopicPartition]] | None = None
        """Positions of a commit that was asked for."""
        self._newest: tuple[Message, str] | None = None
        """The message forwarded last, and the topic that it was forwarded to."""
        self._late: tuple[tuple[Message, str], Forwarded] | None = None
        """Those whose commit was not answered at first, and what became of them."""
        self._token: Any = None
        self._sent: dict[OutputPlace, Message] = {}
        self._committed: dict[OutputPlace, Message] = {}

    @property
    def is_open(self) -> bool:
        return self._transaction.is_open or self._rows is not None

    @property
    def is_due(self) -> bool:
        return self._rows is not None or (self.is_open and self._clock() >= self._deadline)

    def covers(self, ownership: Ownership, offset: int) -> bool:
        """True if the message at an offset is in the open transaction."""
        kept = self._messages.get(ownership.tp)
        return self.is_open and kept is not None and kept[1].offset >= offset

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        """Somebody newer owns the transactional id: whatever is forwarded from now on fails, so the reader ends (R-26)."""
        try:
            yield
        except FencedError as failure:
            self._reader.fenced(failure)
            raise

    def forward(self, message: Message, record: OutgoingRecord) -> Forwarded:
        """Sends `record` for `message`; where the commit of this very message was not answered yet, asks for that again.

        Raises:
            OrderConfigError: It would overtake what was forwarded before (`order="preserve"`); nothing is visible, and the message comes again.
            FencedError: Someone newer owns the transactional id: the reader ends, and leaves its group.
            CommitPendingError: No broker answers, for as long as a call waits; the commit goes on.
            UowError: As `Transaction.begin`, `produce` and `commit`; nothing is visible, and the message comes again.
        """
        with self._fencing():
            if self._rows is not None:
                self._settle()
            if self._late is not None:
                (late, topic), fate = self._late
                if message is late and fate is Forwarded.AGAIN:
                    return fate
                if message is late and record.topic == topic:
                    self._late = None  # said once: another record of it to that topic is sent
                    return fate
            return self._forward(message, record)

    def _forward(self, message: Message, record: OutgoingRecord) -> Forwarded:
        if self._reader.is_doubtful or not message._consumption.is_ours(message._ownership, message.offset):
            return Forwarded.AGAIN
        if not self.is_open:
            self._begin(message)
        first, last = self._messages.get(message._ownership.tp, (message, message))
        self._messages[message._ownership.tp] = (min(first, message, key=_offset), max(last, message, key=_offset))
        self._token, self._newest = message._token, (message, record.topic)
        try:
            self._transaction.produce(record)
            if message._consumption.keeps_order:
                self._check_order(message, record)
        except BaseException:
            self.abort()
            raise
        if self._interval_s:
            return Forwarded.PENDING
        return self._commit()

    def _check_order(self, message: Message, record: OutgoingRecord) -> None:
        """Records of one partition of the input never fall behind each other on their way to one partition of the output (S-17)."""
        place = (*message._ownership.tp, record.topic, record.partition)
        before = self._sent.get(place) or self._committed.get(place)
        if before is not None and message.offset < before.offset:
            said = f"{message.topic}/{message.partition}/{message.offset} after {before.offset}"
            rule = f"would go to {record.topic} in another order than it came: forward one after the other, in the order of the input"
            raise OrderConfigError("order", said, rule)
        self._sent[place] = message

    def _begin(self, message: Message) -> None:
        try:
            self._transaction.begin()
        except BaseException:
            message._ownership.go_back(message.offset)
            raise
        self._deadline = self._clock() + self._interval_s

    def commit(self) -> Forwarded:
        """Commits the open transaction.

        Raises:
            UowError: As `Transaction.commit`; nothing is visible, and its messages come again. `CommitPendingError`: it goes on.
        """
        with self._fencing():
            return self._commit()

    def _commit(self) -> Forwarded:
        if self._rows is None:
            rows: list[tuple[Ownership, TopicPartition]] = []
            try:
                for _, last in self._messages.values():
                    ownership = last._ownership
                    self._reader.before_commit()
                    due = ownership.due_at_once(max(last.offset + 1, ownership.acknowledged))
                    for record in due.records:
                        self._transaction.produce(record)
                    rows.append((ownership, ownership.row(due.position)))
            except BaseException:
                self.abort()
                raise
            self._rows = rows
        return self._settle()

    def _settle(self) -> Forwarded:
        rows = self._rows or []
        positions = [row for _, row in rows] if self._reader.group is not None else []
        try:
            self._transaction.commit(positions, self._token, Patience(self._reader.life))
        except CommitPendingError:
            self._remember(Forwarded.COMMITTED)
            raise
        except StaleGeneration as stale:
            log.info("the group moved on, forwarded messages come again: %s", stale)
            self._go_back()
            self._remember(Forwarded.AGAIN)
            return Forwarded.AGAIN
        except BaseException as failure:
            self._late = None
            if not isinstance(failure, (CommitOutcomeUnknownError, *INTERRUPTED)):
                self._rows = None  # rolled back, for certain
            self.abort()
            raise
        for ownership, row in rows:
            ownership.committed(row)
        self._messages, self._rows = {}, None
        self._committed |= self._sent
        self._sent = {}
        return Forwarded.COMMITTED

    def _remember(self, fate: Forwarded) -> None:
        if self._newest is not None:
            self._late = self._newest, fate

    def abort(self) -> None:
        """Rolls the open transaction back; its messages come again, unless it is found that its commit took place."""
        if self._rows is not None:
            self._reader.doubt()
        self._transaction.abort()
        self._go_back()

    def _go_back(self) -> None:
        for first, _ in self._messages.values():
            first._ownership.go_back(first.offset)
        self._messages, self._sent, self._rows = {}, {}, None

    def end_doubt(self) -> None:
        """Ends, by a new epoch, what the broker may still have of a commit whose outcome is not known. Raises as `Transaction.begin`."""
        with self._fencing():
            self._transaction.begin()
            self._transaction.abort()

    def close(self) -> None:
        """Aborts what is open and gives the transactional id back."""
        self.abort()
        self._give_back(self._transaction)
