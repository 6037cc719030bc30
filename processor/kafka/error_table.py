"""The meaning of librdkafka's error codes: one table, for workers and for applications.

Each code stands in it once. What follows from a meaning depends on the call, and each user decides it in one place: for a transaction
`uow.processor.kafka.transactional_producer`, for a worker's reads `uow.processor.kafka.source` and `log_reader`, for an application
`uow.client.library_errors`.

A code that is not in the table means nothing in particular: inside a transaction that is a doubt about its outcome.

Belongs here: the codes. Does not belong here: handling them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from confluent_kafka import KafkaError as Code


class Meaning(Enum):
    """The meaning of an error code."""

    FENCED = "fenced"
    """Somebody newer owns the transactional id, or the coordinator ended a transaction that took too long: the age of the transaction
    tells the two apart (ER-13, decision 26)."""
    INSTANCE_FENCED = "instance fenced"
    """Somebody newer owns the group instance id. The consumer is at its end; to a transaction it is a stale generation."""
    STALE_GENERATION = "stale generation"
    """The consumer group moved on: normal around joins (ER-14)."""
    REFUSED = "refused"
    """This record will never be written, and certainly was not (F20)."""
    NOT_AUTHORISED_FOR_TOPIC = "not authorised for the topic"
    """The same to a record; reading cannot go on either."""
    UNKNOWN_TOPIC = "unknown topic"
    """The library has the topics of the cluster, and this topic or partition is not among them."""
    UNAVAILABLE = "unavailable"
    """The broker does not know the topic, or has too few replicas of it: not written; the same may go well later (F19)."""
    NOT_AUTHORISED = "not authorised"
    """The cluster refuses our identity, or an access that the whole connection needs."""
    OUT_OF_RANGE = "out of range"
    """Retention took the offset, or the log ends before it."""
    END = "end of the partition"
    """No error: the reader is at the end."""
    UNFETCHABLE = "unfetchable"
    """A batch that inflates to more than `receive.message.max.bytes`, or is damaged. The library would ask for it again for ever."""
    PASSING = "passing"
    """Passes by itself, whatever the library's `retriable` flag says: ask again."""
    OTHER = "other"
    """Nothing in particular."""


TOO_LARGE: Final = (Code.MSG_SIZE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
"""Of those that are refused for what they are: a smaller one would be taken."""

_CODES: Final[Mapping[Meaning, tuple[int, ...]]] = {
    Meaning.FENCED: (Code._FENCED, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED),
    Meaning.INSTANCE_FENCED: (Code.FENCED_INSTANCE_ID,),
    Meaning.STALE_GENERATION: (Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS),
    Meaning.REFUSED: (
        *TOO_LARGE,
        Code.INVALID_MSG,
        Code.INVALID_RECORD,
        Code.TOPIC_EXCEPTION,
        Code.POLICY_VIOLATION,
        Code.INVALID_TIMESTAMP,
        Code._INVALID_ARG,
    ),
    Meaning.NOT_AUTHORISED_FOR_TOPIC: (Code.TOPIC_AUTHORIZATION_FAILED,),
    Meaning.UNKNOWN_TOPIC: (Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION),
    Meaning.UNAVAILABLE: (Code.UNKNOWN_TOPIC_OR_PART, Code.NOT_ENOUGH_REPLICAS),
    Meaning.NOT_AUTHORISED: (
        Code._AUTHENTICATION,
        Code._SSL,
        Code.SASL_AUTHENTICATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    Meaning.OUT_OF_RANGE: (Code._AUTO_OFFSET_RESET, Code.OFFSET_OUT_OF_RANGE, Code._LOG_TRUNCATION),
    Meaning.END: (Code._PARTITION_EOF,),
    Meaning.UNFETCHABLE: (Code._BAD_COMPRESSION, Code._BAD_MSG),
    Meaning.PASSING: (
        Code._TIMED_OUT,
        Code._TIMED_OUT_QUEUE,
        Code._TRANSPORT,
        Code._ALL_BROKERS_DOWN,
        Code._DESTROY_BROKER,  # its connections were cut off and its addresses asked for anew
        Code._RESOLVE,
        Code._WAIT_COORD,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_CONTROLLER,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_FOR_PARTITION,
        Code.REQUEST_TIMED_OUT,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.FENCED_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,  # a leader that is new, and does not know yet what is replicated
        Code.KAFKA_STORAGE_ERROR,  # a disk has failed: another replica leads soon
        Code.NETWORK_EXCEPTION,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.PREFERRED_LEADER_NOT_AVAILABLE,
        Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.CONCURRENT_TRANSACTIONS,
    ),
}

MEANINGS: Final[Mapping[int, Meaning]] = {code: meaning for meaning, codes in _CODES.items() for code in codes}
"""The table: error code to meaning."""

GONE: Final = frozenset((*_CODES[Meaning.OUT_OF_RANGE], *_CODES[Meaning.END]))
"""Answers that say, to a reader of one offset, that no record lies there any more."""


def meaning_of(error: Code) -> Meaning:
    """The meaning of an error, by its code."""
    return MEANINGS.get(error.code(), Meaning.OTHER)


def is_passing(error: Code) -> bool:
    """True if the same question may be answered later: by the library's flags, or by the table where these say nothing."""
    return not error.fatal() and (error.retriable() or meaning_of(error) is Meaning.PASSING)
