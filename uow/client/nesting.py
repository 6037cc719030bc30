"""Units inside units: what an inner unit stands for, and how it takes that component's place (W-205, W-206).

An inner unit's components carry, beside their own id and number, those of the component that they replace (`uow-parent-*`). The inner unit has
them from its end component. Forwarded, it becomes that component: with the outer id, number and end mark, its own id in `uow-inner-id`, one level more in `uow-depth`, and
all of itself as value. What it stands for may itself belong to an inner unit: each level repeats the headers, the nearest first.

Belongs here: headers and value on the way in and out, and the transaction that takes the position along. Does not belong here: sending
(`uow.client.unit_writer`), forwarding (`uow.client.forwarding`), reaching the inner components (`uow.client.received`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from confluent_kafka import TopicPartition

from uow.client.kafka_port import Headers
from uow.client.outgoing import Component
from uow.client.received import InnerUnit, Message, ReceivedDocument, ReceivedUnit
from uow.client.session_state import Patience
from uow.client.transaction import INTERRUPTED, OneTransaction, Transactions
from uow.errors import AlreadyAttachedError, CommitOutcomeUnknownError, LostServerError
from uow.processor.engine.ports import StaleGeneration
from uow.schemas import codec
from uow.schemas.error_classes import BadUnitIdError, ConfigError
from uow.topics.headers import (
    COMPONENT_ID,
    CORRELATION_ID,
    COUNT,
    DELIVER_AT,
    DELIVERY_MODE,
    DEPTH,
    END,
    EXPIRES_AT,
    ID,
    INNER_ID,
    MAX_DEPTH,
    PARENT_COUNT,
    PARENT_END,
    PARENT_ID,
    PARENT_SEQ,
    PARENTS,
    POS,
    PRIORITY,
    SEQ,
    TYPE,
    UNIT_ID,
    USER_ID,
    Marks,
    Reading,
    deepest,
    depth_of,
    only_units_carry,
)

_INHERITED: Final = frozenset(
    {CORRELATION_ID, PRIORITY, TYPE, USER_ID, EXPIRES_AT, DELIVER_AT, DELIVERY_MODE, *PARENTS}
)
"""Beside the user's own headers, what an inner unit's components have of the component that they stand for."""


def inner_unit(destination: str, message: Message, reading: Reading) -> tuple[str, Headers]:
    """Id of an inner unit that stands for `message`, and the headers of all of its components.

    The id follows from the component's, so that a second unit for the same one, whoever makes it, is refused as a duplicate.

    Raises:
        BadUnitIdError: The message is no component.
    """
    marks = reading.read(message.headers)
    if not isinstance(marks, Marks):
        raise BadUnitIdError("stands_for= needs a component; this message is none, or cannot be read as one")
    identity = message.component_id or f"{message.topic}/{message.partition}/{message.offset}"
    return str(uuid5(NAMESPACE_URL, f"{destination}/{identity}")), [
        (PARENT_ID, marks.id),
        (PARENT_SEQ, b"%d" % marks.seq),
        (PARENT_END, b"true" if marks.end else b"false"),
        (PARENT_COUNT, b"%d" % (marks.total or 0)),
        *(pair for pair in message.headers if _is_inherited(pair[0], reading)),
    ]


def _is_inherited(name: str, reading: Reading) -> bool:
    return reading.names.get(name) in _INHERITED or reading.is_user_header(name)


def outer_headers(unit: Headers) -> Headers | None:
    """Headers of the component whose place a finished unit takes; None for a unit that stands for none.

    Raises:
        ConfigError: It is one of many records: only a unit in one piece can be a component.
    """
    said = dict(reversed(unit))
    if any(said.get(name) is None for name in PARENTS):
        return None
    if POS in said:
        raise ConfigError("shape", "consecutive", "a unit that stands for a component is one record: envelope")
    headers: Headers = [(ID, said[PARENT_ID]), (SEQ, said[PARENT_SEQ])]
    if said[PARENT_END] == b"true":
        headers.append((END, b"true"))
    if said[PARENT_COUNT] != b"0":
        headers.append((COUNT, said[PARENT_COUNT]))
    depth = depth_of(unit)
    deeper = 1 + (depth if isinstance(depth, int) else MAX_DEPTH)  # its destination refuses what is too deep
    headers += [(COMPONENT_ID, said[UNIT_ID]), (INNER_ID, said[ID]), (DEPTH, b"%d" % deeper)]
    nearest = set(PARENTS)
    for pair in unit:
        if pair[0] in nearest:
            nearest.remove(pair[0])
        elif not only_units_carry(pair[0]) and pair[0] not in (ID, DEPTH):
            headers.append(pair)
    return headers


def component_of(unit: ReceivedUnit | InnerUnit) -> Component:
    """A finished unit as a component of another one, which gives it a new outer id and number (W-96); a document as it is."""
    if isinstance(unit, ReceivedDocument):
        return Component(unit.value, component_id=unit.unit_id)
    depth = 1 + deepest(each.headers for each in unit.components)
    return Component(
        codec.frame(unit.record), headers={INNER_ID: unit.id, DEPTH: str(depth)}, component_id=unit.unit_id
    )


class StandIn(OneTransaction):
    """The transaction of an inner unit: the position of the message that it stands for is committed with its components.

    Args:
        transactions: Where the transactional id is from.
        message: The component that the unit stands for. It comes again unless the unit is committed.
    """

    def __init__(self, transactions: Transactions, message: Message) -> None:
        super().__init__(transactions)
        self._message = message
        self._consumption, self._ownership = message._consumption, message._ownership

    def begin(self) -> None:
        """Begins, behind what the message's reader has forwarded and not committed yet.

        Raises:
            AlreadyAttachedError: Under strict order: another unit that stands for a message of this reader is open (S-05).
            LostServerError: The message's partition has moved: it comes again, there or here.
            UowError: As `Transaction.begin`.
        """
        hop = self._consumption.hop
        if hop is not None and hop.is_open:
            hop.commit()
        if self._consumption.is_doubtful or not self._consumption.is_ours(self._ownership, self._message.offset):
            raise LostServerError(self._again())
        if self._consumption.strict is not None and self._consumption.stand_in not in (None, self):
            raise AlreadyAttachedError(
                f"another unit stands for a message of this reader of {self._message.topic}: leave it first"
            )
        self._consumption.stand_in = self
        super().begin()

    def commit(
        self, positions: Sequence[TopicPartition] = (), group: Any = None, patience: Patience | None = None
    ) -> None:
        """Commits components and position.

        Raises:
            LostServerError: As `begin`; nothing was sent.
            DestinationChangedError: Under strict order: the message's topic was made again; nothing was sent.
            UowError: As `Transaction.commit`.
        """
        due = self._ownership.due_at_once(self._message.offset + 1)
        row = self._ownership.row(due.position)
        self._consumption.before_commit()
        try:
            for record in due.records:
                self.produce(record)
            super().commit([] if self._consumption.group is None else [row], self._message._token)
        except StaleGeneration as stale:
            raise LostServerError(self._again()) from stale
        except (CommitOutcomeUnknownError, *INTERRUPTED):
            self._consumption.doubt(self.left_in_doubt)
            raise
        self._ownership.committed(row)

    def end(self) -> None:
        """Gives the transactional id back; what is not committed is aborted, and the message comes again."""
        if self._consumption.stand_in is self:
            self._consumption.stand_in = None
        if self._ownership.acknowledged <= self._message.offset:
            self._ownership.go_back(self._message.offset)
        super().end()

    def _again(self) -> str:
        return f"{self._message.topic}/{self._message.partition}/{self._message.offset} comes again"
