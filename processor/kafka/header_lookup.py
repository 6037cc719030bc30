"""Headers that confluent_kafka does not show, as librdkafka itself reports them.

Theory of operation. The client answers None for a record without headers, and for one with headers that the library refuses to read: more than
100,000, or broken ones. The library tells them apart, and the client drops the answer. So the library is asked directly, through its C functions (the
same library, in the same process), by a consumer of its own that reads such records again. It is made when it is first asked for, and only
records that pass without headers are ever asked about.

Belongs here: that one question. Does not belong here: handling such a record (`uow.processor.engine.hidden_headers`).
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, Final

from confluent_kafka import KafkaError, cimpl

from uow.processor.kafka.error_table import GONE

STEP_MS: Final = 100
_CONSUMER: Final = 1
_OK: Final = 0
_SHOWN: Final = frozenset({KafkaError.NO_ERROR, KafkaError._NOENT})
"""Headers that can be read, and none."""
_TEXT_BYTES: Final = 512
_NEAR: Final = 100
"""Records that are read over; for more a jump is cheaper."""
_NO_MORE: Final = sys.maxsize


class _Message(ctypes.Structure):
    """`rd_kafka_message_t`."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


_FUNCTIONS: Final[Mapping[str, tuple[Any, list[Any]]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_topic_partition_list_new": (c_void_p, [c_int]),
    "rd_kafka_topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "rd_kafka_topic_partition_list_set_offset": (c_int, [c_void_p, c_char_p, c_int32, c_int64]),
    "rd_kafka_topic_partition_list_destroy": (None, [c_void_p]),
    "rd_kafka_assign": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_consumer_poll": (POINTER(_Message), [c_void_p, c_int]),
    "rd_kafka_message_headers": (c_int, [POINTER(_Message), POINTER(c_void_p)]),
    "rd_kafka_message_destroy": (None, [POINTER(_Message)]),
    "rd_kafka_consumer_close": (c_int, [c_void_p]),
    "rd_kafka_destroy": (None, [c_void_p]),
}


@cache
def _library() -> Any:
    """Librdkafka as the client has loaded it."""
    library = ctypes.CDLL(cimpl.__file__)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class LookupTimeoutError(Exception):
    """The records could not be read again in time."""


class HeaderLookup:
    """Reads records again, for their headers. For one thread.

    Args:
        properties: Of a consumer that reads from given places.
        answer_s: Longest wait for one record.
        clock: Seconds, from anywhere.
    """

    def __init__(
        self, properties: Mapping[str, Any], answer_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._properties = {**properties, "enable.partition.eof": True, "log_level": 0}  # without a logger
        self._answer_s, self._clock = answer_s, clock
        self._handle: int | None = None
        self._where: tuple[str, int] | None = None
        self._next = 0

    def hidden(self, topic: str, partition: int, offsets: Sequence[int]) -> set[int]:
        """Those of these records whose headers cannot be read. One that is gone is not among them.

        Args:
            topic: Theirs.
            partition: Theirs.
            offsets: Of records that the client shows without headers, rising.

        Raises:
            LookupTimeoutError: No broker answered in time.
        """
        waiting = list(reversed(offsets))
        found: set[int] = set()
        is_near = self._where == (topic, partition) and 0 <= offsets[0] - self._next <= _NEAR
        if not is_near:
            self._jump(topic, partition, offsets[0])
        deadline = self._clock() + self._answer_s
        while waiting and self._clock() < deadline:
            offset, is_hidden = self._read()
            if offset is None:
                continue
            if offset == _NO_MORE and is_near:  # the end, as it was told before these records were there, says nothing
                self._jump(topic, partition, waiting[-1])
                is_near = False
                continue
            deadline = self._clock() + self._answer_s
            while waiting and waiting[-1] < offset:
                waiting.pop()
            if waiting and waiting[-1] == offset:
                waiting.pop()
                if is_hidden:
                    found.add(offset)
        if waiting:
            self._where = None
            raise LookupTimeoutError(f"{topic}/{partition}/{waiting[-1]} was not read again in {self._answer_s:g} s")
        return found

    def _read(self) -> tuple[int | None, bool]:
        """Offset of the next record, and True if its headers cannot be read. The offset is `_NO_MORE` at the end, None if nothing came yet."""
        library = _library()
        message = library.rd_kafka_consumer_poll(self._handle, STEP_MS)
        if not message:
            return None, False
        try:
            error, offset = message.contents.err, message.contents.offset
            if error:
                return _NO_MORE if error in GONE else None, False
            self._next = offset + 1
            code = library.rd_kafka_message_headers(message, ctypes.byref(c_void_p()))
            return offset, code not in _SHOWN
        finally:
            library.rd_kafka_message_destroy(message)

    def close(self) -> None:
        """Closes the consumer."""
        if self._handle is not None:
            _library().rd_kafka_consumer_close(self._handle)
            _library().rd_kafka_destroy(self._handle)
            self._handle = None

    def _jump(self, topic: str, partition: int, offset: int) -> None:
        """Reads from there on."""
        if self._handle is None:
            self._handle = _consumer(self._properties.items())
        library = _library()
        rows = library.rd_kafka_topic_partition_list_new(1)
        library.rd_kafka_topic_partition_list_add(rows, topic.encode(), partition)
        library.rd_kafka_topic_partition_list_set_offset(rows, topic.encode(), partition, offset)
        library.rd_kafka_assign(self._handle, rows)
        library.rd_kafka_topic_partition_list_destroy(rows)
        self._where, self._next = (topic, partition), offset


def _consumer(properties: Iterable[tuple[str, Any]]) -> int:
    library, said = _library(), ctypes.create_string_buffer(_TEXT_BYTES)
    conf = library.rd_kafka_conf_new()
    for name, value in properties:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if library.rd_kafka_conf_set(conf, name.encode(), text.encode(), said, _TEXT_BYTES) != _OK:
            raise LookupTimeoutError(f"{name}: {said.value.decode(errors='replace')}")
    handle: int | None = library.rd_kafka_new(_CONSUMER, conf, said, _TEXT_BYTES)
    if handle is None:
        raise LookupTimeoutError(said.value.decode(errors="replace"))
    return handle
