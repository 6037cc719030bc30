"""librdkafka's mock cluster, by its C functions: protocol errors on demand, without Java.

It does not fence, shows aborted records and forgets offsets that a transaction committed: such things are tested on a broker.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Self

import confluent_kafka

PRODUCE, OFFSET_COMMIT, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, INIT_PRODUCER_ID = (
    0,
    8,
    24,
    25,
    26,
    28,
    22,
)
"""API keys of Kafka's protocol."""

_PRODUCER = 0


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka-*"))))
    for name, arguments, result in (
        ("rd_kafka_conf_new", [], ctypes.c_void_p),
        ("rd_kafka_new", [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_void_p),
        ("rd_kafka_destroy", [ctypes.c_void_p], None),
        ("rd_kafka_mock_cluster_new", [ctypes.c_void_p, ctypes.c_int], ctypes.c_void_p),
        ("rd_kafka_mock_cluster_destroy", [ctypes.c_void_p], None),
        ("rd_kafka_mock_cluster_bootstraps", [ctypes.c_void_p], ctypes.c_char_p),
        ("rd_kafka_mock_topic_create", [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int], ctypes.c_int),
        (
            "rd_kafka_mock_partition_set_leader",
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32],
            ctypes.c_int,
        ),
        ("rd_kafka_mock_broker_set_down", [ctypes.c_void_p, ctypes.c_int32], ctypes.c_int),
        ("rd_kafka_mock_broker_set_up", [ctypes.c_void_p, ctypes.c_int32], ctypes.c_int),
        ("rd_kafka_mock_broker_set_rtt", [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int], ctypes.c_int),
        (
            "rd_kafka_mock_broker_push_request_error_rtts",
            [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int16, ctypes.c_size_t],  # and pairs of error and delay
            ctypes.c_int,
        ),
        (
            "rd_kafka_mock_push_request_errors_array",
            [ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
            None,
        ),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


class MockCluster:
    """Brokers in this process; a context manager. With several, all but `lead` and `slow` concerns the first one.

    Args:
        topics: To create.
        partitions: Of each topic.
        brokers: How many.
    """

    def __init__(self, *topics: str, partitions: int = 2, brokers: int = 1) -> None:
        self._library = _library()
        reason = ctypes.create_string_buffer(512)
        self._handle = self._library.rd_kafka_new(_PRODUCER, self._library.rd_kafka_conf_new(), reason, 512)
        assert self._handle, reason.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        self.bootstrap = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        for topic in topics:
            self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def create(self, topic: str, partitions: int) -> None:
        """Adds a topic."""
        self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def fail(self, api: int, *codes: int) -> None:
        """The next requests of that kind are answered with these error codes."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, api, len(codes), array)

    def late(self, api: int, round_trip_ms: int) -> None:
        """Delays the answer to the next request of that kind."""
        self._library.rd_kafka_mock_broker_push_request_error_rtts(
            self._cluster, 1, api, 1, ctypes.c_int(0), ctypes.c_int(round_trip_ms)
        )

    def down(self) -> None:
        """Cuts connections and refuses new ones."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def up(self) -> None:
        """Answers again."""
        self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    def lead(self, topic: str, partition: int, *, broker: int = 1) -> None:
        """Gives a partition to a broker; -1 takes its leader away."""
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker)

    def slow(self, round_trip_ms: int, *, broker: int = 1) -> None:
        """Delays every answer of a broker."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, round_trip_ms)
