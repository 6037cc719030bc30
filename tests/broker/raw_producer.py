"""Records that no Python client can send: header names that are no UTF-8. librdkafka itself does not mind."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka
import pytest

TOPIC, PARTITION, VALUE, KEY, FLAGS, HEADER = 1, 3, 4, 5, 7, 9
COPY = 2
PRODUCER = 0


class _Memory(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p), ("size", ctypes.c_ssize_t)]


class _Content(ctypes.Union):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int32),
        ("memory", _Memory),
        ("header", _Header),
        ("room", ctypes.c_char * 64),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("content", _Content)]


def _library() -> ctypes.CDLL:
    """The librdkafka that confluent_kafka's wheel brings along."""
    site = Path(confluent_kafka.__file__).parents[1]
    found = [*site.glob("confluent_kafka.libs/librdkafka*"), *site.glob("confluent_kafka/.dylibs/librdkafka*")]
    if not found:
        pytest.skip("no librdkafka beside confluent_kafka: it was not installed from a wheel")
    library = ctypes.CDLL(str(found[0]))
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_produceva):
        function.restype = ctypes.c_void_p
    return library


def produce_raw(
    bootstrap: str,
    topic: str,
    partition: int,
    key: bytes,
    value: bytes,
    headers: Sequence[tuple[bytes, bytes]],
) -> None:
    """Produces one record and waits until it is delivered."""
    library = _library()
    why = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), why, ctypes.c_size_t(len(why)))
    library.rd_kafka_conf_set(settings, b"log_level", b"2", why, ctypes.c_size_t(len(why)))
    producer = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, settings, why, ctypes.c_size_t(len(why))))
    assert producer, why.value
    arguments = [
        _Argument(TOPIC, _Content(text=topic.encode())),
        _Argument(PARTITION, _Content(number=partition)),
        _Argument(FLAGS, _Content(number=COPY)),
        _Argument(KEY, _Content(memory=_Memory(key, len(key)))),
        _Argument(VALUE, _Content(memory=_Memory(value, len(value)))),
        *(_Argument(HEADER, _Content(header=_Header(name, content, len(content)))) for name, content in headers),
    ]
    error = library.rd_kafka_produceva(
        producer, (_Argument * len(arguments))(*arguments), ctypes.c_size_t(len(arguments))
    )
    assert not error
    assert library.rd_kafka_flush(producer, 20_000) == 0
    library.rd_kafka_destroy(producer)
