"""A consumed record for tests without a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from uow.processor.engine.ports import Tp

T0 = 1_700_000_000_000
INPUT = Tp("D.components", 0)
UNREADABLE_HEADERS = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
"""Instead of headers, of which a name is no UTF-8: so says the Kafka client."""


@dataclass(slots=True)
class FakeRecord:
    """A consumed record, with the methods of `confluent_kafka.Message` that are used.

    Attributes:
        headers_: The headers; an exception is raised where they are asked for.
        at: Its append time.
        is_hidden: It has headers that the Kafka client does not show.
        error_: It is no record, but what the client says of one.
        epoch: Of the leader that wrote it.
        kind: Of its append time: 2 is LogAppendTime.
    """

    offset_: int
    headers_: Any
    value_: bytes | None = None
    key_: bytes | None = None
    at: int = T0
    tp: Tp = INPUT
    is_hidden: bool = False
    error_: KafkaError | None = None
    epoch: int | None = None
    kind: int = 2

    def topic(self) -> str:
        return self.tp.topic

    def partition(self) -> int:
        return self.tp.partition

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> Any:
        if isinstance(self.headers_, Exception):
            raise self.headers_
        return self.headers_

    def leader_epoch(self) -> int | None:
        return self.epoch

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.at

    def error(self) -> KafkaError | None:
        return self.error_
