"""The tree of error classes: the class says what the caller does next, the data says what happened.

```text
UowError                             catch this to catch everything of ours
|-- BadUnitIdError                   correct the id, send again
|-- BadSequenceNumberError           correct number, end mark or count, send again
|-- OutOfSequenceRangeError          the unit ends elsewhere: correct number or end mark, send again
|-- DuplicateSequenceNumberError     resend, duplicate: nothing to do; conflict: find the second sender
|-- UnitConflictError                choose one: unit of work or unit of order
|-- UnitClosedError                  the group is closed: use a new id
|-- UnitTooLargeError                split the unit, or raise the limit
|-- MisroutedComponentError          correct the sender's partitioner
|-- ComponentExpiredError            too late for this component: nothing to repeat
|-- RoutingError                     correct the rules or the transform, send again
|-- ConfigError                      correct every setting it names, start again
|-- InternalError                    our bug, at one record that was set aside: report it, send the record again once it is mended
|-- DecodeError                      look at the bytes it keeps, correct the writer
|-- FencedError                      close dirty, rejoin; if our own worker name was taken over: exit 1
|-- StateCorruptedError              wipe and restore the partitions it names
`-- InvariantViolation               our bug: report it with state and event
```

Belongs here: the error classes of refused records (W-34) and their texts; standard library only. Does not belong here: who
raises them, and errors of connecting and ordering, which the client adds (`uow.errors`). A refusal is an outcome in the
worker, never an exception there; its class name, `case` and text are what a record in `D.rejected` carries
(W-34, W-37).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self


def _rebuild(cls: type[UowError], state: Mapping[str, Any]) -> UowError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    return error


class UowError(Exception):
    """Root of the tree: `except UowError` catches all of ours (W-34).

    As a class it also stands for records that a policy and not a fault gave up; `case` is then the `uow-reason`
    (`docs/wire-format.md#error-classes`).

    Attributes:
        case: Which case of the class; the text of `uow-error-case`. Empty where a class knows one case only.
        id: The group id as raw bytes, where known.
        seq: The sequence number, where known.
        detail: The part of the text that class and case do not give.
    """

    CASES: ClassVar[Mapping[str, str]] = {}
    """Case to sentence; the message is derived from it."""

    case: str
    id: bytes | None
    seq: int | None
    detail: str

    def __init__(self, detail: str = "", *, case: str = "", id: bytes | None = None, seq: int | None = None) -> None:
        super().__init__()
        self.case = case
        self.id = id
        self.seq = seq
        self.detail = detail

    @property
    def text(self) -> str:
        """One line for people; the text of `uow-error-text`."""
        sentence = self.CASES.get(self.case, self.case)
        text = (
            f"{sentence}: {self.detail}" if sentence and self.detail else sentence or self.detail or type(self).__name__
        )
        where = []
        if self.id is not None:
            where.append(f"id {self.id.decode('utf-8', 'backslashreplace')!r}")
        if self.seq is not None:
            where.append(f"number {self.seq}")
        return f"{text} ({', '.join(where)})" if where else text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]  # of an exception it is an attribute
        """The text, for whoever prints or counts exceptions by their arguments."""
        return (self.text,)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))


class BadUnitIdError(UowError):
    """The id cannot be used (line 3, W-23).

    The sender corrects it and sends again; the group, if any, lives on (W-35).
    """

    CASES: ClassVar = {
        "empty": "uow-id is empty",
        "undecodable": "uow-id is no UTF-8 text",
        "too-long": "uow-id is longer than 255 bytes",
        "repeated": "uow-id is repeated with different values",
        "alias": "uow-id and an accepted alias of it differ",
        "no-correlation": "nothing in the record says which group it belongs to",
    }


class BadSequenceNumberError(UowError):
    """Number, end mark or count missing or unreadable (lines 4 and 5, W-25 to W-27).

    The sender corrects it and sends again.
    """

    CASES: ClassVar = {
        "a": "uow-seq is missing",
        "b": "uow-seq is zero or negative",
        "malformed": "uow-seq is no decimal number in 1..2147483647",
        "malformed-end": "uow-end is neither true nor false",
        "malformed-count": "uow-count is no decimal number in 1..2147483647",
    }


class OutOfSequenceRangeError(UowError):
    """Number and end contradict each other (lines 8, 11 and 12, W-28 to W-30).

    The group keeps what it has; the sender corrects and sends again.
    """

    CASES: ClassVar = {"a": "number above the known end", "b": "end below a number already held"}


class DuplicateSequenceNumberError(UowError):
    """The number is held already; the first stays (line 10, W-31).

    `resend` and `duplicate` need nothing; `conflict` means two senders disagree: find the second one. The text of a `duplicate` says if its bytes were
    compared: those of a unit that is delivered are not, unless fingerprints of it are kept.
    """

    CASES: ClassVar = {
        "duplicate": "number already held",
        "resend": "number already held, same component id",
        "conflict": "number already held, other bytes",
    }


class UnitConflictError(UowError):
    """`uow-id` and `uoo-name` on one message: a programming error of the sender, who chooses one (line 1, W-33)."""

    CASES: ClassVar = {"": "uow-id and uoo-name on one message"}


class UnitClosedError(UowError):
    """Late: the group is closed, and the case says how (line 9, W-85). The sender uses a new id."""

    CASES: ClassVar = {
        "partial": "the group is closed: delivered without all of its components",
        "expired": "the group is closed: expired",
        "cancelled": "the group is closed: cancelled",
        "failed": "the group is closed: failed",
    }


class UnitTooLargeError(UowError):
    """The group is over a limit and fails (line 14). The sender splits the unit, or the operator raises the limit."""

    CASES: ClassVar = {
        "count": "more components than max_components, or than max_run_components",
        "bytes": "more bytes than max_bytes, or than a rule's bytes(n, strict)",
        "groups": "more open groups than max_open_groups of the rule",
        "depth": "more levels of units inside units than 3",
    }


class MisroutedComponentError(UowError):
    """On the wrong partition although rerouted once (line 6, W-110).

    The sender uses murmur2 of the raw id bytes as everybody else.
    """

    CASES: ClassVar = {"": "wrong partition for the id, and already rerouted once"}


class ComponentExpiredError(UowError):
    """The component's own time has passed (line 13, W-77). Nothing to repeat; its group expires."""

    CASES: ClassVar = {"": "uow-expires-at has passed"}


class RoutingError(UowError):
    """The router cannot make a component of a record (B-23, B-25, B-26). Rules or transform are corrected, or the record is; then it is sent again."""

    CASES: ClassVar = {
        "transform": "the transform failed",
        "filtered": "the transform left it out",
        "no-rule": "no rule, or no row of its rule, is for this record",
    }


class InternalError(UowError):
    """Our bug: the code failed at this record, which was set aside so that the others go on.

    Report it with the lines of code in the log of the worker or router; once it is mended, send the record again. `case` is the exception's name.
    """

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The refusal of a record at which the code raised this."""
        return cls(_said(error), case=type(error).__name__)


_SHOWN = 300


def shown(error: BaseException) -> str:
    """Class and text of an exception on one line: of one that nobody foresaw its beginning, and the class alone where its text cannot be had.

    An error of ours is whole, since what to do stands at its end.
    """
    if isinstance(error, UowError):
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ": ".join(filter(None, (type(error).__name__, _said(error))))[:_SHOWN]


def _said(error: BaseException) -> str:
    try:
        return " ".join(str(error)[: 2 * _SHOWN].split())[:_SHOWN].encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - of code that nobody foresaw
        return ""


@dataclass(frozen=True, slots=True)
class Complaint:
    """One setting that cannot be: its name, its value as given, and the rule it breaks."""

    setting: str
    value: object
    rule: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.value!r}: {self.rule}"


class ConfigError(UowError):
    """Settings that cannot be. The operator corrects every one named and starts again; nothing was started.

    Attributes:
        complaints: One row per setting, in order of reading; never empty.
        setting: Of the first complaint.
        value: Of the first complaint.
        rule: Of the first complaint.
    """

    complaints: tuple[Complaint, ...]

    def __init__(self, setting: str, value: object, rule: str) -> None:
        super().__init__()
        self.complaints = (Complaint(setting, value, rule),)

    @classmethod
    def many(cls, complaints: Iterable[Complaint]) -> Self:
        """All complaints of one reading in one error.

        Raises:
            ValueError: There is no complaint.
        """
        rows = tuple(complaints)
        if not rows:
            raise ValueError("a ConfigError needs a complaint")
        error = cls(rows[0].setting, rows[0].value, rows[0].rule)
        error.complaints = rows
        return error

    @property
    def setting(self) -> str:
        return self.complaints[0].setting

    @property
    def value(self) -> object:
        return self.complaints[0].value

    @property
    def rule(self) -> str:
        return self.complaints[0].rule

    @property
    def text(self) -> str:
        return "\n".join(map(str, self.complaints))


class DecodeError(UowError):
    """A header or value that cannot be read (line 5b).

    The bytes are kept: look at them, correct the writer. A worker rejects the record and goes on.

    Attributes:
        case: Name of the header or format that cannot be read.
        topic: Where the record lies, where known; with `partition` and `offset`.
        data: The bytes, as they were.
    """

    def __init__(
        self,
        case: str,
        detail: str = "",
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        data: bytes | None = None,
        id: bytes | None = None,
    ) -> None:
        super().__init__(detail, case=case, id=id)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.data = data

    def at(self, topic: str, partition: int, offset: int) -> Self:
        """The same error with the coordinates of the record, for a caller that knows them."""
        self.topic, self.partition, self.offset = topic, partition, offset
        return self

    @property
    def text(self) -> str:
        text = super().text
        return text if self.topic is None else f"{text} at {self.topic}/{self.partition}/{self.offset}"


class FencedError(UowError):
    """Another instance owns this now: close dirty and rejoin; if our own worker name was taken over, exit 1 (ER-13)."""


class StateCorruptedError(UowError):
    """Stored or restored state fails its checks: wipe and restore the partitions named.

    Attributes:
        partitions: (topic, partition) of each partition to restore.
        why: The disagreement.
        remedy: The repair, for people on call.
    """

    def __init__(self, partitions: Sequence[tuple[str, int]], why: str, remedy: str = "") -> None:
        super().__init__()
        self.partitions = tuple((topic, partition) for topic, partition in partitions)
        self.why = why
        self.remedy = remedy

    @property
    def text(self) -> str:
        names = ", ".join(f"{topic}/{partition}" for topic, partition in self.partitions)
        text = f"{names}: {self.why}" if names else self.why
        return f"{text}; {self.remedy}" if self.remedy else text


class InvariantViolation(UowError):
    """Our bug: a state and an event that must not meet.

    Report it with both; the partition stops at it (ER-03), the others go on.
    """

    def __init__(self, state: object, event: object, detail: str = "") -> None:
        super().__init__(detail)
        self.state = state
        self.event = event

    @property
    def text(self) -> str:
        text = f"event {self.event!r} in state {self.state!r}"
        return f"{self.detail}: {text}" if self.detail else text


REFUSALS: Mapping[str, type[UowError]] = {
    cls.__name__: cls
    for cls in (
        BadUnitIdError,
        BadSequenceNumberError,
        OutOfSequenceRangeError,
        DuplicateSequenceNumberError,
        UnitConflictError,
        UnitClosedError,
        UnitTooLargeError,
        MisroutedComponentError,
        ComponentExpiredError,
        RoutingError,
        InternalError,
        DecodeError,
        UowError,
    )
}
"""`uow-error-class` to class: what a record in `D.rejected` or `D.errors` can name."""
