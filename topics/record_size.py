"""The size of a record that we write: how many bytes it takes, and if a topic takes it and shows it whole. Asked here alone.

Belongs here: that rule. Does not belong here: the limits of topics (`catalogue`), the limits of a group (`uow.processor.core.group`), and what becomes
of a record that is too large.
"""

from __future__ import annotations

from collections.abc import Sequence

from uow.topics.catalogue import HEADERS_LIMIT, RECORD_LIMIT_BYTES

INPUT_LIMIT_BYTES = 1_048_588
"""Record limit of `D.components` where it has none of its own: the broker's default."""
RECORD_OVERHEAD_BYTES = 1024
"""Room for a record's own fields beside key, value and headers."""

Headers = Sequence[tuple[str, bytes | None]]


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a record, generously."""
    return (
        len(key or b"")
        + len(value or b"")
        + sum([len(name) + len(raw or b"") + 16 for name, raw in headers])
        + RECORD_OVERHEAD_BYTES
    )


class RecordLimit:
    """The rule for one topic.

    Args:
        limit_bytes: The largest record that the topic takes.

    Attributes:
        limit_bytes: The same.
        small_unit_bytes: A unit whose value is not above this fits: its own headers are those of one component, which is in the value.
    """

    __slots__ = ("limit_bytes", "small_unit_bytes")

    def __init__(self, limit_bytes: int = RECORD_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.small_unit_bytes = limit_bytes // 2

    def fits(self, key: bytes | None, value: bytes | None, headers: Headers, more_bytes: int = 0) -> bool:
        """True if the topic takes a record of these, with so many bytes of value besides, and whoever reads it sees all of its headers."""
        if len(headers) > HEADERS_LIMIT:
            return False
        return record_size(key, value, headers) + more_bytes <= self.limit_bytes

    def fits_single(self, key: bytes | None, value: bytes | None, headers: Headers, more_bytes: int = 0) -> bool:
        """The same for a record of one component: it fits, too, where key, value and header values are a quarter of the limit each, at most."""
        if len(headers) > HEADERS_LIMIT:
            return False
        quarter = self.small_unit_bytes // 2
        is_small = (
            more_bytes == 0
            and len(value or b"") <= quarter
            and sum([len(raw or b"") for _, raw in headers]) <= quarter
            and len(key or b"") <= quarter
        )
        return is_small or self.fits(key, value, headers, more_bytes)

    def fits_unit(self, key: bytes, value: bytes, headers: Headers) -> bool:
        """The same for a unit in one record, mostly without a look at each header."""
        if len(value) <= self.small_unit_bytes and len(headers) <= HEADERS_LIMIT:
            return True
        return self.fits(key, value, headers)
