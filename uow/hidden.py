"""Messages whose headers the Kafka client does not show: to look at they are like messages without any, and forwarded they would lose them.

Belongs here: asking once more about a message without headers. Does not belong here: how that is found out (`processor.kafka.hidden`), and what
becomes of such a message (`uow.reader`).
"""

from __future__ import annotations

from collections.abc import Callable

from processor.kafka.hidden import NoAnswerError
from schemas.errors import DecodeError
from uow.errors import ReconnectTimeoutError
from uow.handles import ConsumedRecord, HeaderLookHandle, coordinates


class HiddenHeaders:
    """Looks at messages again. Opens its consumer when it is first asked to. For one thread.

    Args:
        make: Makes what looks.
    """

    def __init__(self, make: Callable[[], HeaderLookHandle]) -> None:
        self._make = make
        self._look: HeaderLookHandle | None = None

    def check(self, record: ConsumedRecord) -> None:
        """For a record that the client shows without headers.

        Raises:
            DecodeError: It has some, and they cannot be read; case `headers`.
            ReconnectTimeoutError: No broker answered.
        """
        if self._look is None:
            self._look = self._make()
        topic, partition, offset = coordinates(record)
        try:
            hidden = self._look.hidden(topic, partition, [offset])
        except NoAnswerError as error:
            raise ReconnectTimeoutError(str(error)) from error
        if offset in hidden:
            raise DecodeError("headers", "headers that cannot be read: more than 100,000 of them, or broken ones")

    def close(self) -> None:
        """Closes the consumer."""
        if self._look is not None:
            self._look.close()
