"""Messages whose headers the Kafka client does not show: they appear to have none, and would lose them when forwarded.

Belongs here: asking once more about a message without headers. Does not belong here: reading it again (`uow.processor.kafka.header_lookup`), and
handling such a message (`uow.client.reader`).
"""

from __future__ import annotations

from collections.abc import Callable

from uow.client.kafka_port import ConsumedRecord, HeaderLookupHandle, coordinates
from uow.errors import ReconnectTimeoutError
from uow.processor.kafka.header_lookup import LookupTimeoutError
from uow.schemas.error_classes import DecodeError


class UnshownHeaders:
    """Reads messages again. Opens its consumer when it is first asked to. For one thread.

    Args:
        make: Makes the handle that reads the messages again.
    """

    def __init__(self, make: Callable[[], HeaderLookupHandle]) -> None:
        self._make = make
        self._lookup: HeaderLookupHandle | None = None

    def check(self, record: ConsumedRecord) -> None:
        """For a record that the client shows without headers.

        Raises:
            DecodeError: It has some, and they cannot be read; case `headers`.
            ReconnectTimeoutError: No broker answered.
        """
        if self._lookup is None:
            self._lookup = self._make()
        topic, partition, offset = coordinates(record)
        try:
            hidden = self._lookup.hidden(topic, partition, [offset])
        except LookupTimeoutError as error:
            raise ReconnectTimeoutError(str(error)) from error
        if offset in hidden:
            raise DecodeError("headers", "headers that cannot be read: more than 100,000 of them, or broken ones")

    def close(self) -> None:
        """Closes the consumer."""
        if self._lookup is not None:
            self._lookup.close()
