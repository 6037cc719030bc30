"""The values that readers hand out: a unit with its components, or a single message.

Belongs here: the values and their methods. Does not belong here: reading and decoding (`uow.client.reader`).
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any, Final

from uow.client.consumption import Consumption
from uow.client.decoding import decode_unit
from uow.client.kafka_port import Headers
from uow.client.ownership import Ownership
from uow.schemas.codec import SchemaSource
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    ComponentRecord,
    Range,
    Reason,
    Unit,
    UnitOutcome,
)
from uow.topics.headers import (
    COMPONENT_ID,
    FOLDERS,
    ID,
    INNER_ID,
    KIND,
    POS,
    REQUEST_ID,
    SUPERSEDES,
    from_origin,
    is_unit,
)
from uow.topics.manifests import KIND_NOTICE
from uow.topics.pipeline import barrier_in

log = logging.getLogger(__name__)

MAX_DEPTH: Final = 32
"""Most levels of units inside units that are opened: each level copies all that is in it, and ten megabytes hold a hundred thousand levels."""


def _header(headers: Headers | tuple[tuple[str, bytes | None], ...], name: str) -> str | None:
    raw = next((value for each, value in headers if each == name), None)
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class ReceivedComponent:
    """One component of a unit, with everything it came with (W-95).

    Attributes:
        record: The component as it stands in the unit.
    """

    record: ComponentRecord
    _registry: SchemaSource | None = field(default=None, repr=False, compare=False)
    _depth: int = field(default=0, repr=False, compare=False)

    @property
    def seq(self) -> int:
        return self.record.seq

    @property
    def end(self) -> bool:
        """True if it carried the end mark."""
        return self.record.end

    @property
    def component_id(self) -> str | None:
        return self.record.component_id

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """All header pairs, in order, `uow-*` included."""
        return self.record.headers

    @property
    def timestamp(self) -> int:
        """Append time at the destination, epoch ms."""
        return self.record.timestamp

    def header(self, name: str) -> str | None:
        """Text of the first header of that name, or None."""
        return _header(self.record.headers, name)

    @property
    def inner_id(self) -> str | None:
        """Id of the unit that this component says it is; None for one that does not (W-206). Its sender says so: `unit` tells whether it is true."""
        return self.header(INNER_ID)

    @property
    def unit(self) -> InnerUnit | None:
        """The unit that this component is, with components of its own (W-206).

        None for one that is no unit: without an inner id, or with one over a value that is none, which any sender can write. None, too, where
        units are nested deeper than `MAX_DEPTH`.

        Raises:
            UowError: The registry does not answer.
        """
        if self.inner_id is None or self._depth >= MAX_DEPTH:
            return None
        return _opened(self.value, self._registry, self.record.source, self._depth + 1)

    def text(self) -> str:
        """The value as UTF-8 text; a null value is the empty text."""
        return (self.record.value or b"").decode()

    def json(self) -> Any:
        """The value as JSON; a null value is None."""
        return None if self.record.value is None else json.loads(self.record.value)


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """A record of a topic, and its coordinates.

    Attributes:
        topic: Where it was read; with `partition` and `offset` its coordinates.
        headers: All header pairs of the record, in order.
        redelivered: True: it was handed out before, by this reader, or by one before it, as the group's committed offset says. False: nobody has.
            None: another reader or process may have, for it was there when this reader got the partition (R-35). Identity tells a repetition by its sender: it is another record (R-58).
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: Headers
    _consumption: Consumption = field(repr=False)
    _ownership: Ownership = field(repr=False)
    redelivered: bool | None

    def header(self, name: str) -> str | None:
        """Text of the first header of that name, or None."""
        return _header(self.headers, name)

    def _acknowledge(self) -> None:
        self._consumption.acknowledge(self._ownership, self.offset)


class _UnitProperties:
    """Properties of any finished unit."""

    __slots__ = ()
    record: Unit

    @property
    def id(self) -> str:
        """The group id."""
        return self.record.id

    @property
    def unit_id(self) -> str:
        """Stable identity: the same for the same unit also when it is emitted again (W-90)."""
        return self.record.unit_id

    @property
    def destination(self) -> str:
        return self.record.destination

    @property
    def generation(self) -> int:
        return self.record.generation

    @property
    def outcome(self) -> UnitOutcome:
        """`complete` or `partial`."""
        return self.record.outcome

    @property
    def reason(self) -> Reason:
        return self.record.reason

    @property
    def missing(self) -> tuple[Range, ...]:
        """Numbers that are missing; only in a partial unit."""
        return self.record.missing

    @property
    def expires_at(self) -> int | None:
        """Epoch ms, or None."""
        return self.record.expires_at


@dataclass(frozen=True, slots=True)
class InnerUnit(_UnitProperties):
    """A finished unit inside another record: a component of another unit, or what passed through a destination that did not form it.

    Attributes:
        record: The unit as decoded.
        components: In number order; each may be a unit again.
    """

    record: Unit
    components: tuple[ReceivedComponent, ...]


def _opened(value: bytes | None, registry: SchemaSource | None, place: object, depth: int = 1) -> InnerUnit | None:
    """The unit in a value whose headers say that it is one; None if it is none. Any sender can set such headers, so that must not stop a reader."""
    try:
        record = decode_unit(value, registry)
    except DecodeError as error:
        log.warning("the headers of the record at %s say that it is a unit, but it is none: %s", place, str(error))
        return None
    return InnerUnit(record, tuple([ReceivedComponent(each, registry, depth) for each in record.components]))


@dataclass(frozen=True, slots=True, eq=False)
class AnyUnit(_UnitProperties, Received):
    """The properties of a finished unit, whichever way its components are handed out.

    It is the same in every shape. Of one of shape `consecutive`, coordinates and timestamp are those of its first record; one that a worker of an
    earlier version wrote tells less: of its components the user headers alone, under the group id as key, `opened_at` and `closed_at` are the
    moment it was written, and `bytes` is 0.

    Attributes:
        record: The unit as decoded.
        delivery_count: Which delivery of this unit to this group it is, from 1. Without a redelivery limit counted while readers close in order:
            a reader that was killed leaves no count then (W-52, W-87).
    """

    record: Unit
    delivery_count: int

    @property
    def supersedes(self) -> str | None:
        """`unit_id` of the unit that this one corrects; None for any other (B-205)."""
        return self.header(SUPERSEDES)


@dataclass(frozen=True, slots=True, eq=False)
class WholeUnit(AnyUnit):
    """A finished unit, whole and in order, without the way to acknowledge it.

    Attributes:
        components: In number order (W-10).
        last_offset: Offset of its last record: `offset`, but in shape `consecutive`.
    """

    components: tuple[ReceivedComponent, ...]
    last_offset: int

    @property
    def folders(self) -> dict[str, list[ReceivedComponent]]:
        """The replies of a fan-out by folder, in the order of the requests; empty lists for folders without reply. Empty for a document, and for any other unit."""
        found: dict[str, list[ReceivedComponent]] = {}
        if not self.components and self.record.count:  # a document does not list them
            return found
        held = {each.seq: each for each in self.components}
        for number, folder in enumerate(json.loads(self.header(FOLDERS) or "[]"), 1):
            found.setdefault(folder, []).extend([held[number]] if number in held else [])
        return found

    def _acknowledge(self) -> None:
        self._consumption.acknowledge(self._ownership, self.last_offset)


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedUnit(WholeUnit):
    """A finished unit, whole and in order."""

    def acknowledge(self) -> None:
        """As `Message.acknowledge`, behind its last record: never inside a unit (W-14)."""
        self._acknowledge()


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedDocument(ReceivedUnit):
    """A finished unit by rule whose row says XML: a document for receivers, around those of its components (B-53).

    Its record does not list them, so `components` is empty; `record` is what the headers tell, with their number in `count`.

    Attributes:
        value: The document.
    """

    value: bytes

    def text(self) -> str:
        """The document as text; it is UTF-8."""
        return self.value.decode()


@dataclass(frozen=True, slots=True, eq=False)
class AnyMessage(Received):
    """A single record, without the way to acknowledge it.

    Attributes:
        key: Raw bytes, or None.
        value: Raw bytes, or None.
    """

    key: bytes | None
    value: bytes | None
    _token: Any = field(repr=False)
    _registry: SchemaSource | None = field(default=None, repr=False)

    @property
    def barrier(self) -> int | None:
        """The pipeline version that this record announces; None for all but barriers, which have no value, and are forwarded as they are (S-16)."""
        return barrier_in(self.headers)

    @property
    def unit(self) -> InnerUnit | None:
        """The finished unit of another destination that was sent on and passed through here; None for any other record (W-96).

        None, too, where the headers say so and the value is none. Its origin is not checked: a destination vouches only for the units that it
        formed itself, which its readers hand out as such. Under shape `reference` its components are without key, value and headers; under shape
        `consecutive` each record is one component and no unit, hence None.

        Raises:
            UowError: The registry does not answer.
        """
        headers = from_origin(self.headers)
        if not is_unit(headers) or any(name == POS for name, _ in headers):
            return None
        return _opened(self.value, self._registry, f"{self.topic}/{self.partition}/{self.offset}")

    @property
    def id(self) -> str | None:
        """Text of `uow-id`; None for plain traffic."""
        return self.header(ID)

    @property
    def component_id(self) -> str | None:
        return self.header(COMPONENT_ID)

    @property
    def cancels(self) -> str | None:
        """Id of the request whose reply is needed no longer, of a cancel notice; None for any other record (B-209). Its value says why, in JSON."""
        return self.header(REQUEST_ID) if (KIND, KIND_NOTICE) in self.headers else None

    def text(self) -> str:
        """The value as UTF-8 text; a null value is the empty text."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value as JSON; a null value is None."""
        return None if self.value is None else json.loads(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Message(AnyMessage):
    """A single record: at an intermediate topic a component or plain traffic, at a destination a record that passed through."""

    def acknowledge(self) -> None:
        """Commits the position after this record, and waits for the broker's answer.

        It is cumulative: everything before it in its partition is acknowledged too. Without it the committed offset does not move, and
        the record comes again to the next reader of the group (W-52).

        Raises:
            LostServerError: Its partition went to another member, or was rolled back, meanwhile: it comes again (R-34).
            ReconnectTimeoutError: The broker did not answer; call again.
            ClientClosedError: The reader is closed.
        """
        self._acknowledge()
