"""Every error that users of `uow` can meet: those that a refused record carries (W-34), and those that concern a call and not a record.

```text
UowError
|-- ...                              those of refused records: `uow.schemas.error_classes`
|-- EmptyUnitError                   a unit block was left without a component: send one, or raise to give the unit up
|-- StaleConnectionError             the object cannot go on: make a new connection
|   |-- ReconnectTimeoutError        no broker answered in time
|   `-- ReconnectGivenUpError        final: read the cause
|-- ClientClosedError                call after close()
|   `-- IncompleteUnitError          a component past the block of its unit: nothing is sent
|-- DestinationUnavailableError      certainly not written: repeat once the topic is there
|-- SendRejectedError                certainly not written: correct the record
|-- AccessDeniedError                the cluster lets this user not use a topic: grant the right
|-- AmbiguousSendError               may be written: repeat with the same Component
|-- TransactionRolledBackError       nothing of it is visible: repeat all of it
|-- CommitPendingError               not answered yet: call commit() again, and nothing else
|-- CommitOutcomeUnknownError        all of it is visible, or nothing: repeat with the same id
|-- DuplicateClientIdError           a live connection has the client id: once that is closed
|-- LostServerError                  not ours any more, it comes again: do not acknowledge
|-- SubscriptionExpiredError         the committed offset is gone: the operator decides
|-- DestinationChangedError          another topic id or partition count: the operator decides
|-- OrderBlockedError                strict order: a record is not done, or was not written, and nothing passes it
|-- AlreadyAttachedError             strict order: the subscription has its reader
|-- OrderConfigError                 strict order: a setting or call would break it (a `ConfigError`)
|-- RegistryError                    the schema registry does not answer, or refuses: mend it
|-- NoAnswerError                    commands: Kafka did not answer, or a topic is missing
|-- UnansweredError                  commands: no worker answered in time; the command is decided all the same
|-- MoveError                        `uow topics repartition`, `uow migrate`: groups were not moved, or not all is done
|-- RulesUnavailable, CannotChange   rules cannot be read now; a change of rules cannot be made
`-- TooManyRecords                   `uow rules rehearse`: more records than allowed: begin later, or allow more

RuntimeError
|-- BrokerFailed                     the embedded broker ended, or was not ready in time: read its log
|-- PortTaken, FolderInUse           another program has its port, another broker its folder
|-- BrokerStopped                    its start was abandoned on request
|-- JavaMissing, JarsMissing         the message says what to install
`-- ChecksumMismatch                 a downloaded jar is not the one that was locked
```

Those of commands, rules and `RuntimeError` are loaded when they are first used: importing this module loads neither Kafka's client nor the command line's rooms.

Belongs here: names. Does not belong here: which error of librdkafka means which of them (`uow.client.library_errors`), handling them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from uow.schemas.error_classes import (
    BadSequenceNumberError,
    BadUnitIdError,
    Complaint,
    ComponentExpiredError,
    ConfigError,
    DecodeError,
    DuplicateSequenceNumberError,
    FencedError,
    InternalError,
    InvariantViolation,
    MisroutedComponentError,
    OutOfSequenceRangeError,
    RoutingError,
    StateCorruptedError,
    UnitClosedError,
    UnitConflictError,
    UnitTooLargeError,
    UowError,
)

if TYPE_CHECKING:
    from uow.embedded.broker import BrokerFailed, BrokerStopped, FolderInUse, PortTaken
    from uow.jvm.jars import ChecksumMismatch, JarsMissing
    from uow.jvm.java import JavaMissing
    from uow.ops.destination_logs import NoAnswerError
    from uow.ops.group_commands import UnansweredError
    from uow.ops.rehearsal import TooManyRecords
    from uow.ops.sole_member import MoveError
    from uow.processor.rules.changes import CannotChange, RulesUnavailable
    from uow.schemas.registry import RegistryError

_HOMES: Mapping[str, str] = {
    "BrokerFailed": "uow.embedded.broker",
    "BrokerStopped": "uow.embedded.broker",
    "CannotChange": "uow.processor.rules.changes",
    "ChecksumMismatch": "uow.jvm.jars",
    "FolderInUse": "uow.embedded.broker",
    "JarsMissing": "uow.jvm.jars",
    "JavaMissing": "uow.jvm.java",
    "MoveError": "uow.ops.sole_member",
    "NoAnswerError": "uow.ops.destination_logs",
    "PortTaken": "uow.embedded.broker",
    "RegistryError": "uow.schemas.registry",
    "RulesUnavailable": "uow.processor.rules.changes",
    "TooManyRecords": "uow.ops.rehearsal",
    "UnansweredError": "uow.ops.group_commands",
}
"""The module that defines each error that is loaded when it is first used."""

__all__ = [
    "AccessDeniedError",
    "AlreadyAttachedError",
    "AmbiguousSendError",
    "BadSequenceNumberError",
    "BadUnitIdError",
    "BrokerFailed",
    "BrokerStopped",
    "CannotChange",
    "ChecksumMismatch",
    "ClientClosedError",
    "CommitOutcomeUnknownError",
    "CommitPendingError",
    "Complaint",
    "ComponentExpiredError",
    "ConfigError",
    "DecodeError",
    "DestinationChangedError",
    "DestinationUnavailableError",
    "DuplicateClientIdError",
    "DuplicateSequenceNumberError",
    "EmptyUnitError",
    "FencedError",
    "FolderInUse",
    "IncompleteUnitError",
    "InternalError",
    "InvariantViolation",
    "JarsMissing",
    "JavaMissing",
    "LostServerError",
    "MisroutedComponentError",
    "MoveError",
    "NoAnswerError",
    "OrderBlockedError",
    "OrderConfigError",
    "OutOfSequenceRangeError",
    "PortTaken",
    "ReconnectGivenUpError",
    "ReconnectTimeoutError",
    "RegistryError",
    "RoutingError",
    "RulesUnavailable",
    "SendRejectedError",
    "StaleConnectionError",
    "StateCorruptedError",
    "SubscriptionExpiredError",
    "Suspect",
    "TooManyRecords",
    "TransactionRolledBackError",
    "UnansweredError",
    "UnitClosedError",
    "UnitConflictError",
    "UnitTooLargeError",
    "UowError",
]


class EmptyUnitError(UowError):
    """A unit block was left normally without a component: a unit has at least one, and none is left without an end silently (W-16, W-45)."""

    CASES: ClassVar[Mapping[str, str]] = {"": "the unit has no component; nothing was sent"}


class StaleConnectionError(UowError):
    """The object cannot go on: make a new connection."""


class ReconnectTimeoutError(StaleConnectionError):
    """No broker answered in time. The library goes on trying in the background: wait and call again, or close (R-22).

    Attributes:
        pending: Of a send, the record that was accepted already, as a `uow.Pending` that can be waited for; else None.
    """

    pending: Any = None


class ReconnectGivenUpError(StaleConnectionError):
    """Final: the cause (authentication, a fatal error of the library) does not pass by itself."""


class ClientClosedError(UowError):
    """A call after `close()`, or after the unit's block was left."""


class IncompleteUnitError(ClientClosedError):
    """A component past its unit's block: before it, after it, or by a plain send under the id of a unit that is open here (B-120, B-122).

    It would not be in the unit's transaction. Nothing was sent.
    """


class DestinationUnavailableError(UowError):
    """Unknown topic, no leader, or too few replicas, and the record was certainly not written: the caller may repeat."""


class AccessDeniedError(UowError):
    """The cluster does not let this user know of a topic, so nobody can tell whether it is there: grant the right that the message names."""


class SendRejectedError(UowError):
    """Refused for good (too large, not authorised, invalid), or the send buffer stayed full; certainly not written."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record whose fate nobody knows: what `Connection.probe` needs to look for it.

    Attributes:
        component_id: Its identity.
        topic: Where it was sent.
        partition: Where to; -1: where its key belongs.
        ends: The last known end offsets of partitions: it can lie only behind them.
        at: When it was sent, epoch seconds.
    """

    component_id: str
    topic: str
    partition: int = -1
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    at: float = 0.0


class AmbiguousSendError(UowError):
    """The record may be in the log or not. Repeat with the same `Component`: a second copy is refused as `resend` (R-04).

    Attributes:
        suspect: Identity and place of the record; `Connection.probe` looks for it.
    """

    def __init__(self, detail: str = "", suspect: Suspect | None = None) -> None:
        super().__init__(detail)
        self.suspect = suspect


class TransactionRolledBackError(UowError):
    """Nothing of this transaction is visible, and the object is usable again: repeat all of it (R-30, R-33)."""


class CommitPendingError(UowError):
    """The commit was not answered in time, and goes on: call `commit()` again, and nothing else (R-63)."""


class CommitOutcomeUnknownError(UowError):
    """The commit was not answered: all of the transaction is visible, or nothing of it. `Connection.recover` finds out (R-71).

    Repeating a unit under the same id is safe: where the first one was committed, the second is refused as late or duplicate (W-19).

    Attributes:
        transactional_id: Of the transaction.
        suspect: One of its records, if one has an identity.
    """

    def __init__(self, detail: str = "", transactional_id: str = "", suspect: Suspect | None = None) -> None:
        super().__init__(detail)
        self.transactional_id, self.suspect = transactional_id, suspect


class DuplicateClientIdError(UowError):
    """A live connection has the client id: of this process, or, where the broker lets the older member stay, of another (R-24).

    The caller may repeat once the other one is closed.
    """


class LostServerError(UowError):
    """The partition was lost or moved before this was acknowledged. It comes again, here or elsewhere: expect redelivery (R-34)."""


class SubscriptionExpiredError(UowError):
    """The committed offset is gone or out of range: records may be missing, so nothing is read until the operator decides (R-53)."""


class DestinationChangedError(UowError):
    """A strict destination has other topics, or another partition count, than its era: its order would begin anew (S-15, S-21).

    The operator decides: `uow adopt D --why ...` begins a new era. Or the topic that is read was deleted and made again (F24): a new reader goes on at
    the group's offset there. Or a temporary destination that is read is gone (R-10), for good.
    """


class OrderBlockedError(UowError):
    """Strict order: a record is not done with, or was not written for certain, and nothing may pass it (S-14, S-30).

    A reader goes on by itself once the record succeeds. A producer goes on after `resend` or `skip`.
    """


class AlreadyAttachedError(UowError):
    """Strict order with `strict_attach = "fail"`: other readers have every partition of the subscription (S-03). Try again later."""


class OrderConfigError(ConfigError):
    """A setting or a call that would break strict order: setting, value and rule say which (S-02). Nothing was done."""


if not TYPE_CHECKING:  # to a type checker, every name that is asked for would exist

    def __getattr__(name: str) -> Any:
        """Loads an error, once; raises AttributeError for a name that is none."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    """The errors, loaded or not."""
    return sorted({*globals(), *__all__})
