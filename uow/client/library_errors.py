"""The class of `uow.errors` for an error of librdkafka (R-82), by the one table of codes.

Belongs here: errors of single records, sent or read. Does not belong here: those of a transaction (`uow.client.transaction`), and the
table (`uow.processor.kafka.error_table`).
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from uow.errors import (
    AmbiguousSendError,
    DestinationUnavailableError,
    ReconnectGivenUpError,
    SendRejectedError,
    SubscriptionExpiredError,
    Suspect,
)
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.schemas.error_classes import FencedError, UowError
from uow.topics.access import explained


def sent_error(error: KafkaError, topic: str, suspect: Suspect | None = None) -> UowError:
    """The class for one record that could not be delivered; `suspect` is its identity, for one that may be written all the same."""
    text = f"{topic}: {explained(error.name(), error.str())}"
    match meaning_of(error):
        case Meaning.REFUSED | Meaning.NOT_AUTHORISED_FOR_TOPIC:
            return SendRejectedError(text)
        case Meaning.UNKNOWN_TOPIC | Meaning.UNAVAILABLE:
            return DestinationUnavailableError(text)
        case Meaning.FENCED | Meaning.INSTANCE_FENCED:
            return FencedError(text)
        case Meaning.NOT_AUTHORISED:
            return ReconnectGivenUpError(text)
    return ReconnectGivenUpError(text) if error.fatal() else AmbiguousSendError(text, suspect)


_INSTANCE_FENCED: Final = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()


def is_fatal(error: KafkaError) -> bool:
    """True if the handle is at its end. The errors that a consumer hands out like a record have the code for that, and not the flag."""
    return error.fatal() or error.code() == KafkaError._FATAL


def read_error(error: KafkaError, topic: str) -> UowError | None:
    """The class for an error met while reading; None for one that passes by itself (R-01)."""
    text = f"{topic}: {explained(error.name(), error.str())}"
    if is_fatal(error) and _INSTANCE_FENCED in error.str():  # the code says no more than that it is fatal
        return FencedError(text)
    match meaning_of(error):
        case Meaning.OUT_OF_RANGE:
            return SubscriptionExpiredError(text)
        case Meaning.UNKNOWN_TOPIC | Meaning.UNAVAILABLE:
            return DestinationUnavailableError(text)
        case Meaning.FENCED | Meaning.INSTANCE_FENCED:
            return FencedError(text)
        case Meaning.NOT_AUTHORISED | Meaning.NOT_AUTHORISED_FOR_TOPIC:
            return ReconnectGivenUpError(text)
    return ReconnectGivenUpError(text) if is_fatal(error) else None
