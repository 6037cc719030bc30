"""Every error that users of `uow` can meet: those of contract section 4, and those that concern a call and not a record.

```text
UowError
|-- ...                              contract section 4: `schemas.errors`
|-- EmptyUnitError                   a unit block was left without a component: send one, or raise to give the unit up
|-- StaleConnectionError             the object cannot go on: make a new connection
|   |-- ReconnectTimeoutError        no broker answered in time
|   `-- ReconnectGivenUpError        final: read the cause
|-- ClientClosedError                call after close()
|-- DestinationUnavailableError      certainly not written: repeat once the topic is there
|-- SendRejectedError                certainly not written: correct the record
|-- AmbiguousSendError               may be written: repeat with the same Component
|-- TransactionRolledBackError       nothing of it is visible: repeat all of it
|-- CommitOutcomeUnknownError        all of it is visible, or nothing: repeat with the same id
|-- LostServerError                  not ours any more, it comes again: do not acknowledge
`-- SubscriptionExpiredError         the committed offset is gone: the operator decides
```

Belongs here: names, and which library error means which class (failover section 3). Does not belong here: handling them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from confluent_kafka import KafkaError

from schemas.errors import (
    BadSequenceNumberError,
    BadUnitIdError,
    ComponentExpiredError,
    ConfigError,
    DecodeError,
    DuplicateSequenceNumberError,
    FencedError,
    InvariantViolation,
    MisroutedComponentError,
    OutOfSequenceRangeError,
    StateCorruptedError,
    UnitClosedError,
    UnitConflictError,
    UnitTooLargeError,
    UowError,
)

__all__ = [
    "AmbiguousSendError",
    "BadSequenceNumberError",
    "BadUnitIdError",
    "ClientClosedError",
    "CommitOutcomeUnknownError",
    "ComponentExpiredError",
    "ConfigError",
    "DecodeError",
    "DestinationUnavailableError",
    "DuplicateSequenceNumberError",
    "EmptyUnitError",
    "FencedError",
    "InvariantViolation",
    "LostServerError",
    "MisroutedComponentError",
    "OutOfSequenceRangeError",
    "ReconnectGivenUpError",
    "ReconnectTimeoutError",
    "SendRejectedError",
    "StaleConnectionError",
    "StateCorruptedError",
    "SubscriptionExpiredError",
    "TransactionRolledBackError",
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
    """No broker answered in time. The library goes on trying in the background: wait and call again, or close (R-22)."""


class ReconnectGivenUpError(StaleConnectionError):
    """Final: the cause (authentication, a fatal error of the library) does not pass by itself."""


class ClientClosedError(UowError):
    """A call after `close()`, or after the unit's block was left."""


class DestinationUnavailableError(UowError):
    """Unknown topic, no leader, or too few replicas, and the record was certainly not written: the caller may repeat."""


class SendRejectedError(UowError):
    """Refused for good (too large, not authorised, invalid), or the send buffer stayed full; certainly not written."""


class AmbiguousSendError(UowError):
    """Nobody can say whether the record is in the log. Repeat with the same `Component`: a second copy is refused as `resend` (R-04)."""


class TransactionRolledBackError(UowError):
    """Nothing of this transaction is visible, and the object is usable again: repeat all of it (R-30, R-33)."""


class CommitOutcomeUnknownError(UowError):
    """The commit was not answered: all of the transaction is visible, or nothing of it.

    Repeating a unit under the same id is safe: where the first one was committed, the second is refused as late or duplicate (W-19).
    """


class LostServerError(UowError):
    """The partition was lost or moved before this was acknowledged. It comes again, here or elsewhere: expect redelivery (R-34)."""


class SubscriptionExpiredError(UowError):
    """The committed offset is gone or out of range: records may be missing, so nothing is read until the operator decides (R-53)."""


_REJECTED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
        18,  # RECORD_LIST_TOO_LARGE
    }
)
_UNAVAILABLE = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_ENOUGH_REPLICAS,
    }
)
_GIVEN_UP = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._SSL,
    }
)
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
        90,  # PRODUCER_FENCED
    }
)
"""Somebody newer owns the transactional id or the group instance id."""
STALE_GENERATION = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS}
)
"""The consumer group moved on: normal around joins (ER-14)."""


def sent_error(error: KafkaError, topic: str) -> UowError:
    """The class for one record that a plain producer could not deliver (failover section 3)."""
    told = f"{topic}: {error.str()}"
    code = error.code()
    if code in _REJECTED:
        return SendRejectedError(told)
    if code in _UNAVAILABLE:
        return DestinationUnavailableError(told)
    if code in FENCED:
        return FencedError(told)
    if code in _GIVEN_UP or error.fatal():
        return ReconnectGivenUpError(told)
    return AmbiguousSendError(told)


def read_error(error: KafkaError, topic: str) -> UowError | None:
    """The class for an error met while reading; None for one that passes by itself (R-01)."""
    told = f"{topic}: {error.str()}"
    code = error.code()
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return SubscriptionExpiredError(told)
    if code in _UNAVAILABLE:
        return DestinationUnavailableError(told)
    if code in FENCED:
        return FencedError(told)
    if code in _GIVEN_UP or code == KafkaError.TOPIC_AUTHORIZATION_FAILED or error.fatal():
        return ReconnectGivenUpError(told)
    return None
