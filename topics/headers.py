"""Header names (`docs/wire-format.md`), and how a record's headers are read: lines 1 to 5b of the decision table. Pure.

Belongs here: names, alias families, reading and refusing. Does not belong here: what happens to a group (`uow.processor.core`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from uow.schemas.error_classes import (
    BadSequenceNumberError,
    BadUnitIdError,
    DecodeError,
    OutOfSequenceRangeError,
    UnitConflictError,
    UnitTooLargeError,
    UowError,
)
from uow.topics import foreign_values
from uow.topics.fields import fields_of
from uow.topics.foreign_values import FIRST_TURNS, TURNS, Turn, integer
from uow.topics.policies import AliasFamily, DestinationPolicy, FieldSource

ID: Final = "uow-id"
SEQ: Final = "uow-seq"
END: Final = "uow-end"
COUNT: Final = "uow-count"
COMPONENT_ID: Final = "uow-component-id"
EXPIRES_AT: Final = "uow-expires-at"
DELIVER_AT: Final = "uow-deliver-at"
DIGEST: Final = "uow-digest"
SEGMENT_AT: Final = "uow-segment-at"
SEGMENT_END: Final = "uow-segment-end"
"""On a piece of a component: its first byte's position in the value, from 0, and the mark on the last piece (B-124)."""
CORRELATION_ID: Final = "uow-correlation-id"
PRIORITY: Final = "uow-priority"
TYPE: Final = "uow-type"
USER_ID: Final = "uow-user-id"
REPLY_TO: Final = "uow-reply-to"
DELIVERY_MODE: Final = "uow-delivery-mode"
DESTINATION: Final = "uow-destination"
SOURCE_NAME: Final = "uow-source-name"
ORDER_NAME: Final = "uoo-name"
ORDER_KEY: Final = "uow-order-key"
PIPELINE_VERSION: Final = "uow-pipeline-version"
BARRIER: Final = "uow-barrier"
HOPS: Final = "uow-hops"
ORIGIN_TS: Final = "uow-origin-ts"
PRODUCER_ID: Final = "uow-producer-id"
INNER_ID: Final = "uow-inner-id"
DEPTH: Final = "uow-depth"
"""On a component that is a unit, and on the unit that it is in: levels of units, counted from the innermost; 1 where no header says more (B-109)."""
PARENT_ID: Final = "uow-parent-id"
PARENT_SEQ: Final = "uow-parent-seq"
PARENT_END: Final = "uow-parent-end"
PARENT_COUNT: Final = "uow-parent-count"
REROUTED: Final = "uow-rerouted"
RESUBMITTED: Final = "uow-resubmitted"
"""On a record that was sent again: coordinates of the refused one."""
RULE: Final = "uow-rule"
INPUT: Final = "uow-input"
ARRIVED_AT: Final = "uow-arrived-at"
DELAY_MS: Final = "uow-delay-ms"
WARNING: Final = "uow-warning"
ORIGIN_KEY: Final = "uow-origin-key"
"""On a component by rule: the key of the record that it was made of, if that had one of its own."""
RECYCLED: Final = "uow-recycled"
"""On a component that a command brought back into a group (B-73)."""
STAMPED: Final = frozenset({ID, RULE, INPUT, ARRIVED_AT, DELAY_MS, WARNING, ORIGIN_KEY})
"""Headers that the router writes on a component (aggregation, 2.2). Those that a record of its inputs brings along say nothing."""

KIND: Final = "uow-kind"
UNIT_ID: Final = "uow-unit-id"
GENERATION: Final = "uow-generation"
OUTCOME: Final = "uow-outcome"
REASON: Final = "uow-reason"
SIZE: Final = "uow-size"
MISSING: Final = "uow-missing"
POS: Final = "uow-pos"
ERASED: Final = "uow-erased"
"""On a unit the numbers of components whose payload was erased; on such a component the id of the command (B-216)."""
SUPERSEDES: Final = "uow-supersedes"
"""On a corrected unit: `uow-unit-id` of the one that it takes the place of (B-205)."""
COLLECTION: Final = "uow-collection"
REQUEST_ID: Final = "uow-request-id"
"""Id of a request of a fan-out; its reply has it as `uow-correlation-id` (B-79)."""
FOLDERS: Final = "uow-folders"
"""On the unit of a fan-out: the folders of its requests, by number, as a JSON list (B-78)."""
KIND_UNIT: Final = b"unit"

OPENED_AT: Final = "uow-opened-at"
CLOSED_AT: Final = "uow-closed-at"
BYTES: Final = "uow-bytes"
COMPONENT_SEQ: Final = "uow-component-seq"
COMPONENT_END: Final = "uow-component-end"
COMPONENT_AT: Final = "uow-component-at"
COMPONENT_KEY: Final = "uow-component-key"
IN_RUN: Final = frozenset({OPENED_AT, CLOSED_AT, BYTES, COMPONENT_SEQ, COMPONENT_END, COMPONENT_AT, COMPONENT_KEY})
"""Headers on records of shape `consecutive` for facts that an envelope has in its value."""
OWN: Final = "uow-own-"
"""Prefix for a header of such a record's component that would otherwise be taken for the unit's own."""

ERROR_CLASS: Final = "uow-error-class"
ERROR_CASE: Final = "uow-error-case"
ERROR_TEXT: Final = "uow-error-text"
ERROR_VALUE: Final = "uow-error-value"
"""The reason why an external value is missing, and the place where it was (W-117)."""
SOURCE: Final = "uow-source"
FAILURE_REASON: Final = "uow-failure-reason"

CONTENT_TYPE: Final = "uow-content-type"
"""Media type of a unit's value, where it is another document than a unit."""

UNIT_ONLY: Final = (
    frozenset({KIND, UNIT_ID, GENERATION, OUTCOME, REASON, SIZE, MISSING, POS, ERASED, SUPERSEDES}) | IN_RUN
)
"""Headers that only units have, besides those with the prefix `OWN`."""
ORIGIN: Final = "uow-origin-"
"""Replaces `uow-` in their names on a record that is not a unit of the destination (line 2 of the decision table)."""
ORIGIN_KIND: Final = "uow-origin-kind"
"""Kind of a finished unit that passed through; it is still not a component when it is sent on once more."""
PARENTS: Final = (PARENT_ID, PARENT_SEQ, PARENT_END, PARENT_COUNT)
"""Headers of the component that an inner unit replaces (W-205). Each repeats once per level of nesting, the nearest level first."""
ON_UNIT: Final = frozenset(
    {ID, KIND, UNIT_ID, GENERATION, OUTCOME, REASON, SIZE, MISSING, SUPERSEDES, EXPIRES_AT, DELIVERY_MODE}
    | {CORRELATION_ID, PRIORITY, USER_ID, TYPE, DEPTH, *PARENTS}
)
"""`uow-*` headers that a unit may have (`docs/wire-format.md#headers-of-a-unit`): what a route's condition may test."""
ERROR_ONLY: Final = frozenset({ERROR_CLASS, ERROR_CASE, ERROR_TEXT, ERROR_VALUE, SOURCE, FAILURE_REASON})

MAX_ID_BYTES: Final = 255
MAX_RULE_BYTES: Final = 255
"""Longest `uow-rule`: a rule id, a routing name of 128 characters at most, and a version."""
MAX_SEQ: Final = 2_147_483_647
MAX_DEPTH: Final = 3
"""Levels of units that a unit may have (B-109)."""
ENDS: Final = {b"true": True, b"false": False}

UNTREATED: Final = frozenset(
    {
        ID,
        SEQ,
        END,
        COMPONENT_ID,
        CORRELATION_ID,
        TYPE,
        USER_ID,
        REPLY_TO,
        DESTINATION,
        SOURCE_NAME,
        HOPS,
        ORIGIN_TS,
        PRODUCER_ID,
        INNER_ID,
        *PARENTS,
    }
)
"""`uow-*` headers that do not change how a component is treated: a record with no others is *plain* (the fast path deals with it in bulk)."""

_JMS_COMMON: Final = {
    "JMSMessageID": COMPONENT_ID,
    "JMSExpiration": EXPIRES_AT,
    "JMSCorrelationID": CORRELATION_ID,
    "JMSPriority": PRIORITY,
    "JMSType": TYPE,
    "JMSXUserID": USER_ID,
    "JMSReplyTo": REPLY_TO,
    "JMSDeliveryMode": DELIVERY_MODE,
}
_NIFI: Final = {"fragment.identifier": ID, "fragment.index": SEQ, "fragment.count": COUNT}
ALIASES: Final[dict[AliasFamily, dict[str, str]]] = {
    AliasFamily.WEBLOGIC: _JMS_COMMON
    | {
        "JMS_BEA_UnitOfWork": ID,
        "JMS_BEA_UnitOfWorkSequenceNumber": SEQ,
        "JMS_BEA_IsUnitOfWorkEnd": END,
        "JMS_BEA_DeliveryTime": DELIVER_AT,
        "JMS_BEA_UnitOfOrder": ORDER_NAME,
    },
    AliasFamily.JMS: _JMS_COMMON | {"JMSXGroupID": ID, "JMSXGroupSeq": SEQ, "JMS_IBM_Last_Msg_In_Group": END},
    AliasFamily.MQ: {
        "mq-group-id": ID,
        "mq-msg-seq-number": SEQ,
        "mq-msg-flags": END,
        "mq-offset": SEGMENT_AT,
        "destination": DESTINATION,
    },
    AliasFamily.SPRING: {
        "correlationId": ID,
        "sequenceNumber": SEQ,
        "sequenceSize": COUNT,
    },
    AliasFamily.NIFI: _NIFI,
    AliasFamily.NIFI_FROM_1: _NIFI,
    AliasFamily.CAMEL: {},
}
"""Alias header -> the header it stands for, per family (W-17). Camel has no names of its own: it writes integers under any."""
_MQ_FLAGS: Final = "mq-msg-flags"
_NEVER_NULL: Final = STAMPED - {ID, ORIGIN_KEY} | {KIND, ORIGIN_KIND, ERASED, REROUTED, DEPTH}
"""Headers that only this product writes. A null there is a value, and mostly refused: they are read in other places as well."""
_NUMBERS: Final = frozenset({SEQ, COUNT, EXPIRES_AT, DELIVER_AT, PRIORITY, SEGMENT_AT})
"""Headers whose values are numbers: of other systems they may come as 4 or 8 bytes."""

_BEFORE: Final = {ORIGIN + name.removeprefix("uow-"): name for name in UNIT_ONLY}
_OWN_BEFORE: Final = ORIGIN + OWN.removeprefix("uow-")

Values = dict[str, list[bytes | None]]


class Segment(NamedTuple):
    """The place of a piece in the value of its component (B-124): position of its first byte, and True if it is the last piece."""

    at: int
    end: bool


class Marks(NamedTuple):
    """The content of a component's headers.

    Attributes:
        id: Group id, UTF-8 bytes, 1 to 255.
        seq: Sequence number, from 1.
        end: True if it has the end mark.
        total: Number of components of the unit by `uow-count`, or None.
        component_id: `uow-component-id`, or None.
        expires_at: Epoch ms, 0 for never.
        deliver_at: Epoch ms, 0 for at once.
        special: True if a header changes its treatment, so that the fast path must leave it alone.
        rerouted: True if it was sent on to its right partition already (line 6).
        order_key: `uow-order-key`; empty for none (W-210).
        routed: What a router wrote on it; None for a component of a unit of work.
        segment: Of a piece of a component its place in there; None for a whole one.
    """

    id: bytes
    seq: int
    end: bool
    total: int | None = None
    component_id: bytes | None = None
    expires_at: int = 0
    deliver_at: int = 0
    special: bool = False
    rerouted: bool = False
    order_key: bytes = b""
    routed: Routed | None = None
    segment: Segment | None = None


class Refusal(NamedTuple):
    """The refusal of a component: error class and case (W-34), and details. `id` is None if none could be read."""

    error: type[UowError]
    case: str
    detail: str
    id: bytes | None = None
    seq: int | None = None


class Routed(NamedTuple):
    """The marks that a router wrote on a component of a group by rule (aggregation, 2.2).

    Attributes:
        rule: Name of the row that it chose, the text of `uow-rule`.
        input: Coordinates of the record it was made of, `topic/partition/offset`; None where a producer skipped the router.
        arrived_at: When that record arrived, epoch ms, or None.
        delay_ms: How long the component may wait, or None (B-05).
        unnumbered: Why it has no number of its own (lines 4 and 5); None if it has one. That matters only where senders give the numbers.
    """

    rule: str
    input: bytes | None = None
    arrived_at: int | None = None
    delay_ms: int | None = None
    unnumbered: Refusal | None = None


class _Refused(Exception):
    def __init__(self, error: type[UowError], case: str, detail: str) -> None:
        self.refusal = Refusal(error, case, detail)


class Reading:
    """Reads headers with a set of accepted alias families. Stateless after construction. A replay must read as before, hence `VERSION`.

    Version 1 took a null for a value, integers for text alone, and the id of no group of MQ for a group.
    """

    VERSION: Final = 2

    def __init__(self, families: Iterable[AliasFamily] = (), version: int = VERSION) -> None:
        accepted = self.families = frozenset(families)
        self.version = version
        self.names: dict[str, str] = {name: name for name in _NATIVE}
        self._turns: dict[str, Turn] = {}
        for family in AliasFamily:  # the enum's order, so that it does not depend on how the setting was written
            if family in accepted:
                self.names |= ALIASES[family]
        if version == 1:
            self._turns |= FIRST_TURNS
            return
        for name, meant in self.names.items():
            if meant in _NUMBERS and (name != meant or AliasFamily.CAMEL in accepted):
                self._turns[name] = integer
        self._turns |= TURNS
        if AliasFamily.NIFI_FROM_1 in accepted:
            self._turns["fragment.index"] = integer

    @property
    def code(self) -> int:
        """Version and families as one number, which the ledger keeps, so that a replay reads the records as they were read at first."""
        return self.version | sum(1 << 8 + index for index, family in enumerate(AliasFamily) if family in self.families)

    @classmethod
    def of(cls, policy: DestinationPolicy) -> Reading:
        """The reading of a destination."""
        kind = ValueReading if policy.field_source is FieldSource.VALUE else cls
        return kind(policy.accept_aliases)

    @classmethod
    def of_code(cls, code: int) -> Reading:
        """The reading of a code.

        Raises:
            DecodeError: The code is of a version that this worker does not know.
        """
        families = [family for index, family in enumerate(AliasFamily) if code >> 8 + index & 1]
        version = code & 0xFF
        reading = ValueReading(families, version) if code & ValueReading.BIT else cls(families, version)
        if reading.code != code or not 1 <= version <= cls.VERSION:
            raise DecodeError("reader", f"reading {code} is unknown, this worker's is version {cls.VERSION}")
        return reading

    def is_user_header(self, name: str) -> bool:
        """True for a header of the application: neither `uow-*`, `uoo-*` nor an accepted alias (W-90)."""
        return not name.startswith(("uow-", "uoo-")) and name not in self.names

    def properties(self, headers: Sequence[tuple[str, bytes | None]]) -> Values:
        """Every known header with all its values, by its `uow-*` name; aliases are translated. A null of a sender is no value."""
        values: Values = {}
        for name, value in self._plain(headers):
            meant = self.names.get(name)
            if meant is None:
                continue
            said = self.native(name, value)
            if self.is_said(meant, said):
                values.setdefault(meant, []).append(said)
        return values

    def is_said(self, meant: str, value: bytes | None) -> bool:
        """False for a value that counts as if its header was not there."""
        return value is not None or self.version == 1 or meant in _NEVER_NULL

    def native(self, name: str, value: bytes | None) -> bytes | None:
        """A header's value translated to that of the `uow-*` header; None if it says nothing."""
        turn = self._turns.get(name)
        return value if turn is None or value is None else turn(value)

    def _plain(self, headers: Sequence[tuple[str, bytes | None]]) -> Sequence[tuple[str, bytes | None]]:
        if AliasFamily.SPRING not in self.families or self.version == 1:
            return headers
        return foreign_values.without_json(headers, ALIASES[AliasFamily.SPRING])

    def read(
        self, headers: Sequence[tuple[str, bytes | None]] | None, value: bytes | None = None
    ) -> Marks | Refusal | None:
        """Lines 1 to 5b of the decision table for one record. Its value is read only by a `ValueReading`.

        Returns:
            Marks for a component, a Refusal with its class and case, or None for plain traffic that passes through (line 2).
        """
        if not headers:
            return None
        names, values = self.names, self.properties(headers)
        if "correlationId" in names and not self._has(headers, "sequenceNumber"):
            self._forget(headers, values, "correlationId")  # Spring: a correlation id alone makes no group
        if "mq-offset" in names:
            self.read_mq_segment(headers, values)
        if ID not in values:
            return None
        if ORDER_NAME in values:
            return Refusal(UnitConflictError, "", "", _readable(values[ID]))
        is_routed = RULE in values
        if (
            SEQ not in values
            and not is_routed
            and any(KIND_UNIT in values.get(name, ()) for name in (KIND, ORIGIN_KIND))
        ):
            return None
        group_id = _readable(values[ID])
        if group_id is None:
            case = _why_unreadable(values[ID])
            if case == "repeated" and len({name for name, _ in headers if names.get(name) == ID}) > 1:
                case = "alias"
            return Refusal(BadUnitIdError, case, f"id {_shown(values[ID][0])}")
        try:
            marks = self._marks(group_id, values, _routed(values) if is_routed else None)
        except _Refused as refused:
            return self._told(refused.refusal, headers)._replace(id=group_id)
        if not is_routed and AliasFamily.NIFI in self.families and marks.total is not None and marks.seq > marks.total:
            beyond = Refusal(OutOfSequenceRangeError, "a", f"{marks.seq} of {marks.total}", group_id, marks.seq)
            return self._told(beyond, headers) if self._has(headers, "fragment.index") else marks
        return marks

    def _told(self, refusal: Refusal, headers: Sequence[tuple[str, bytes | None]]) -> Refusal:
        """The refusal in the sender's words: the spelling that it used, and the family that it probably meant."""
        subject = _SUBJECTS.get((refusal.error, refusal.case), refusal.case)
        told = [name for name, meant in self.names.items() if meant == subject != name and self._has(headers, name)]
        meant = probably_meant(headers, self.families)
        words = [", ".join(told), refusal.detail, meant and f"looks like {meant}"]
        return refusal._replace(detail="; ".join(filter(None, words)))

    def _has(self, headers: Sequence[tuple[str, bytes | None]], wanted: str) -> bool:
        return any(name == wanted and (value is not None or self.version == 1) for name, value in headers)

    def _forget(self, headers: Sequence[tuple[str, bytes | None]], values: Values, alias: str) -> None:
        """Takes back the values of an alias that means nothing on this record."""
        meant = self.names[alias]
        for name, value in self._plain(headers):
            if name == alias and (said := self.native(name, value)) in values.get(meant, ()):
                values[meant].remove(said)
        if not values.get(meant, True):
            del values[meant]

    def read_mq_segment(self, headers: Sequence[tuple[str, bytes | None]], values: Values) -> None:
        """A message of MQ always has an offset; its flags say if it is a segment, and if it is the last one (B-124)."""
        flags = 0
        for name, value in headers:
            if name == _MQ_FLAGS and value is not None:
                flags |= foreign_values.flags_of(value) or 0
        if flags & foreign_values.LAST_SEGMENT:
            values.setdefault(SEGMENT_END, []).append(b"true")
        elif not flags & foreign_values.SEGMENT:
            self._forget(headers, values, "mq-offset")

    @staticmethod
    def _marks(group_id: bytes, values: Values, routed: Routed | None) -> Marks:
        seq, end, count = 0, False, None
        try:
            seq = _number(values.get(SEQ))
            end = _end(values.get(END))
            count = _count(values.get(COUNT))
        except _Refused as refused:
            if routed is None:
                raise
            routed = routed._replace(unnumbered=refused.refusal._replace(id=group_id))
        expires_at = _moment(EXPIRES_AT, values.get(EXPIRES_AT))
        deliver_at = _moment(DELIVER_AT, values.get(DELIVER_AT))
        _check_priority(values.get(PRIORITY))
        _check_digest(values.get(DIGEST))
        if ERASED in values:
            raise _Refused(DecodeError, ERASED, "only a worker writes it, on what it erased")
        component_id = (values.get(COMPONENT_ID) or [None])[0]
        if component_id is not None and not is_text(component_id):
            component_id = None  # it only decides the case of a duplicate; the raw header is kept
        special = any(name not in UNTREATED for name in values)
        return Marks(
            group_id,
            seq,
            end,
            count,
            component_id,
            expires_at,
            deliver_at,
            special,
            REROUTED in values,
            _order_key(values.get(ORDER_KEY)),
            routed,
            _segment(values),
        )


class ValueReading(Reading):
    """Reads id, number and end mark from fields of a JSON value, named like the headers, if no header gives an id (W-24)."""

    BIT: Final = 1 << 24
    """Part of `code`."""

    @property
    def code(self) -> int:
        return super().code | self.BIT

    def read(
        self, headers: Sequence[tuple[str, bytes | None]] | None, value: bytes | None = None
    ) -> Marks | Refusal | None:
        """Lines 1 to 5b for one record, headers and fields together. Finished units are left alone; a value that is not a JSON object is plain."""
        headers = headers or ()
        found = super().read(headers)
        if found is not None or (KIND, KIND_UNIT) in headers or (ORIGIN_KIND, KIND_UNIT) in headers:
            return found
        if value is not None and self.version > 1:
            value = value.removeprefix(codecs.BOM_UTF8)
        return super().read([*headers, *fields_of(value, (ID, SEQ, END))])


_NATIVE: Final = UNTREATED | {
    COUNT,
    EXPIRES_AT,
    DELIVER_AT,
    DIGEST,
    PRIORITY,
    DELIVERY_MODE,
    ORDER_NAME,
    ORDER_KEY,
    KIND,
    ORIGIN_KIND,
    ERASED,
    REROUTED,
    DEPTH,
    RULE,
    INPUT,
    ARRIVED_AT,
    DELAY_MS,
    SEGMENT_AT,
    SEGMENT_END,
}


_SUBJECTS: Final[dict[tuple[type[UowError], str], str]] = {
    (BadSequenceNumberError, "a"): SEQ,
    (BadSequenceNumberError, "b"): SEQ,
    (BadSequenceNumberError, "malformed"): SEQ,
    (BadSequenceNumberError, "malformed-end"): END,
    (BadSequenceNumberError, "malformed-count"): COUNT,
    (OutOfSequenceRangeError, "a"): SEQ,
}
"""The header that a refusal is about; the case of others is its name."""
_MAKES_GROUPS: Final = frozenset({ID, SEQ, END, COUNT})
_COMMON_NAMES: Final = frozenset({"correlationId", "destination"})
"""Names that anybody uses: they say nothing of a system."""


def probably_meant(headers: Iterable[tuple[str, bytes | None]], accepted: Iterable[AliasFamily] = ()) -> str:
    """The system that wrote these headers, by a sign that its family of aliases is not accepted, and the setting to make; empty without such a sign."""
    families = frozenset(accepted)
    said = [(name, value) for name, value in headers if value is not None]
    names = {name for name, _ in said}
    if AliasFamily.CAMEL not in families:
        for name, value in said:
            if name in _NUMBERS and foreign_values.is_binary(value):
                return _setting(f"Camel's integer header {name}", families | {AliasFamily.CAMEL})
    if "fragment.index" in names and AliasFamily.NIFI_FROM_1 not in families and _is_past_the_last(dict(said)):
        others = families - {AliasFamily.NIFI}
        return _setting("NiFi counting from 1, as SplitText and UnpackContent do", others | {AliasFamily.NIFI_FROM_1})
    if AliasFamily.NIFI_FROM_1 in families and (b"0" in [value for name, value in said if name == "fragment.index"]):
        others = families - {AliasFamily.NIFI_FROM_1}
        return _setting("NiFi counting from 0, as SplitJson and SplitRecord do", others | {AliasFamily.NIFI})
    known = {alias for family in families for alias in ALIASES[family]}
    for family in AliasFamily:
        for alias, meant in ALIASES[family].items():
            if alias in names and alias not in known and meant in _MAKES_GROUPS and alias not in _COMMON_NAMES:
                doubt = ", if it counts from 0" if family is AliasFamily.NIFI else ""
                return _setting(f"{_SYSTEMS[family]} {alias}{doubt}", families | {family})
    return ""


_SYSTEMS: Final = {
    AliasFamily.WEBLOGIC: "WebLogic's",
    AliasFamily.JMS: "JMS's",
    AliasFamily.MQ: "IBM MQ's",
    AliasFamily.SPRING: "Spring Integration's",
    AliasFamily.NIFI: "NiFi's",
}


def _is_past_the_last(said: dict[str, bytes]) -> bool:
    index, count = (decimal(said.get(name, b"")) for name in ("fragment.index", "fragment.count"))
    return index is not None and count is not None and index >= count


def _setting(what: str, families: Iterable[AliasFamily]) -> str:
    listed = ", ".join(f'"{family}"' for family in AliasFamily if family in set(families))
    return f"{what}: accept_aliases = [{listed}]"


def _one(name: str, raws: list[bytes | None] | None) -> bytes | None:
    """The single value of a header; equal repeats count as one (W-23). Raises `DecodeError`'s refusal for different ones."""
    if raws is None:
        return None
    if len(set(raws)) > 1:
        raise _Refused(DecodeError, name, f"{name} repeated with different values")
    return raws[0] or b""


def _readable(raws: list[bytes | None]) -> bytes | None:
    return None if _why_unreadable(raws) else raws[0]


def _why_unreadable(raws: list[bytes | None]) -> str:
    """The case of `BadUnitIdError`, or nothing."""
    raw = raws[0]
    if len(set(raws)) > 1:
        return "repeated"
    if not raw:
        return "empty"
    if len(raw) > MAX_ID_BYTES:
        return "too-long"
    return "" if is_text(raw) else "undecodable"


def only_units_carry(name: str) -> bool:
    """True for a header that only the worker of a destination writes, on units; a forwarder never copies it (W-56)."""
    return name in UNIT_ONLY or name.startswith(OWN)


def is_unit(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """True if a record is a finished unit by its headers (W-96), which on `D.units` only the destination's own worker writes."""
    return (KIND, KIND_UNIT) in headers and all(name != SEQ for name, _ in headers)


def as_origin(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """The headers of a record that is not a unit of the destination: those that only its worker writes on units are renamed to `uow-origin-...`.

    Names are case-sensitive: `UOW-Kind` belongs to the application, and no reader takes it for `uow-kind`.
    """
    return [(ORIGIN + name.removeprefix("uow-") if only_units_carry(name) else name, value) for name, value in headers]


def from_origin(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """The headers of a passed record as its sender wrote them: the inverse of `as_origin`."""
    return [
        (OWN + name.removeprefix(_OWN_BEFORE) if name.startswith(_OWN_BEFORE) else _BEFORE.get(name, name), value)
        for name, value in headers
    ]


def is_text(raw: bytes) -> bool:
    """True if the bytes are UTF-8."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shown(raw: bytes | None) -> str:
    text = repr(raw)[1:] if raw is not None else "null"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _number(raws: list[bytes | None] | None) -> int:
    if raws is None:
        raise _Refused(BadSequenceNumberError, "a", "")
    raw = raws[0] or b""
    if len(set(raws)) > 1:
        raise _Refused(BadSequenceNumberError, "malformed", "repeated with different values")
    number = decimal(raw)
    if number is not None and 1 <= number <= MAX_SEQ:
        return number
    if number == 0 or (raw[:1] == b"-" and raw[1:].isdigit()):
        raise _Refused(BadSequenceNumberError, "b", _shown(raw))
    raise _Refused(BadSequenceNumberError, "malformed", _shown(raw))


def decimal(raw: bytes) -> int | None:
    """A plain ASCII decimal of at most 19 significant digits, else None (W-27)."""
    if not raw.isdigit():
        return None
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= 19 else None


def _end(raws: list[bytes | None] | None) -> bool:
    if raws is None:
        return False
    marks = {(raw or b"").lower() for raw in raws}
    if len(marks) > 1:
        raise _Refused(BadSequenceNumberError, "malformed-end", "repeated with different values")
    mark = ENDS.get(marks.pop())
    if mark is None:
        raise _Refused(BadSequenceNumberError, "malformed-end", _shown(raws[0]))
    return mark


def _count(raws: list[bytes | None] | None) -> int | None:
    if raws is None:
        return None
    count = decimal(raws[0] or b"") if len(set(raws)) == 1 else None
    if count is None or not 1 <= count <= MAX_SEQ:
        raise _Refused(BadSequenceNumberError, "malformed-count", _shown(raws[0]))
    return count


def _moment(name: str, raws: list[bytes | None] | None) -> int:
    raw = _one(name, raws)
    if raw is None:
        return 0
    moment = decimal(raw)
    if moment is None or moment > 253_402_300_799_999:  # the year 9999: what a timestamp in a table can hold
        raise _Refused(DecodeError, name, f"{name} {_shown(raw)} is no time in epoch milliseconds")
    return moment


_COORDINATES: Final = re.compile(rb"[A-Za-z0-9._-]{1,249}/[0-9]{1,10}/[0-9]{1,19}")
_SENDERS: Final = b"sender:"


def identity_of(component_id: bytes | None, input: bytes | None) -> bytes | None:
    """The id by which a component by rule is known: its sender's, else the coordinates of its input record; None if it has neither.

    An id of a sender that reads like coordinates gets a mark, so that it never stands for another record of the input.
    """
    if not component_id:
        return input
    is_odd = component_id.startswith(_SENDERS) or _COORDINATES.fullmatch(component_id) is not None
    return _SENDERS + component_id if is_odd else component_id


def routed_of(headers: Sequence[tuple[str, bytes | None]]) -> Routed | Refusal:
    """The marks that a router wrote on a component, whatever its number is; or why it cannot be read."""
    values: Values = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    try:
        return _routed(values)
    except _Refused as refused:
        return refused.refusal


def depth_of(headers: Iterable[tuple[str, bytes | None]], above: int = 0) -> int | Refusal:
    """The depth of a unit, or that of a component, which its unit has then; or why such a component is refused (B-109).

    `Reading` refuses nothing of it: a replay reads also what an earlier version held, which did not know the header.

    Args:
        headers: Of the unit, or the component.
        above: Levels that come on top.
    """
    raws = [value for name, value in headers if name == DEPTH]
    depth = 1 if not raws else decimal(raws[0] or b"") if len(set(raws)) == 1 else None
    if not depth:
        return Refusal(DecodeError, DEPTH, f"{DEPTH} {_shown(raws[0])} is no number of levels, or differs from another")
    depth += above
    if depth > MAX_DEPTH:
        return Refusal(UnitTooLargeError, "depth", f"units in {depth} levels, {MAX_DEPTH} are allowed")
    return depth


def deepest(components: Iterable[Iterable[tuple[str, bytes | None]]]) -> int:
    """The depth of a unit by the headers of its components; one that cannot be read counts as 1."""
    return max([depth for depth in map(depth_of, components) if isinstance(depth, int)], default=1)


def _routed(values: Values) -> Routed:
    raw_rule, raw_input = _one(RULE, values.get(RULE)) or b"", _one(INPUT, values.get(INPUT))
    if not raw_rule or len(raw_rule) > MAX_RULE_BYTES or not is_text(raw_rule):
        raise _Refused(DecodeError, RULE, f"{RULE} {_shown(raw_rule)} is no name of a row")
    if raw_input is not None and not _COORDINATES.fullmatch(raw_input):
        raise _Refused(DecodeError, INPUT, f"{INPUT} {_shown(raw_input)} is no topic/partition/offset")
    arrived_at = _moment(ARRIVED_AT, values[ARRIVED_AT]) if ARRIVED_AT in values else None
    delay_ms = _moment(DELAY_MS, values[DELAY_MS]) if DELAY_MS in values else None
    return Routed(raw_rule.decode(), raw_input, arrived_at, delay_ms)


def _order_key(raws: list[bytes | None] | None) -> bytes:
    key = _one(ORDER_KEY, raws) or b""
    if len(key) > MAX_ID_BYTES:
        raise _Refused(DecodeError, ORDER_KEY, f"{ORDER_KEY} {_shown(key)} is longer than {MAX_ID_BYTES} bytes")
    return key


def _segment(values: Values) -> Segment | None:
    raw_at, raw_end = _one(SEGMENT_AT, values.get(SEGMENT_AT)), _one(SEGMENT_END, values.get(SEGMENT_END))
    if raw_at is None and raw_end is None:
        return None
    at = decimal(raw_at or b"")
    if at is None:
        raise _Refused(DecodeError, SEGMENT_AT, f"{SEGMENT_AT} {_shown(raw_at)} is no position of a byte")
    end = ENDS.get((raw_end or b"false").lower())
    if end is None:
        raise _Refused(DecodeError, SEGMENT_END, f"{SEGMENT_END} {_shown(raw_end)} is neither true nor false")
    return Segment(at, end)


def segment_of(headers: Sequence[tuple[str, bytes | None]]) -> Segment:
    """The place of a record that was taken for a piece, whatever aliases are accepted by now."""
    values = _READING.properties(headers)
    if SEGMENT_AT not in values:
        values = _READING_OF_MQ.properties(headers)
        _READING_OF_MQ.read_mq_segment(headers, values)
    return _segment(values) or Segment(0, False)


def without_segment(headers: Sequence[tuple[str, bytes | None]], reading: Reading) -> list[tuple[str, bytes | None]]:
    """The headers of a component that a piece has: without its place in there."""
    return [pair for pair in headers if reading.names.get(pair[0]) not in (SEGMENT_AT, SEGMENT_END)]


def _check_priority(raws: list[bytes | None] | None) -> None:
    raw = _one(PRIORITY, raws)
    if raw is not None and not (len(raw) == 1 and raw.isdigit()):
        raise _Refused(DecodeError, PRIORITY, f"{PRIORITY} {_shown(raw)} is no digit from 0 to 9")


def _check_digest(raws: list[bytes | None] | None) -> None:
    raw = _one(DIGEST, raws)
    if raw is None:
        return
    scheme, _, digest = raw.partition(b":")
    if scheme != b"sha256" or len(digest) != 64 or digest.strip(b"0123456789abcdefABCDEF"):
        raise _Refused(
            DecodeError,
            DIGEST,
            f"{DIGEST} {_shown(raw)} is no sha256:<64 hexadecimal digits>",
        )


_READING: Final = Reading([AliasFamily.CAMEL])
_READING_OF_MQ: Final = Reading([AliasFamily.MQ])
