"""A run of `uow demo` as a child process, and what its topics hold while it goes on running."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.processes import PATIENCE_S, Process

QUIET = logging.getLogger("tests.librdkafka")


@dataclass(frozen=True)
class Seen:
    """A record as any client sees it."""

    topic: str
    partition: int
    offset: int
    headers: dict[str, str]
    value: bytes

    @property
    def id(self) -> str | None:
        return self.headers.get("uow-id")

    @property
    def seq(self) -> int:
        return int(self.headers["uow-seq"])

    def json(self) -> Any:
        return json.loads(self.value)


def records(bootstrap: str, topic: str) -> list[Seen]:
    """Everything that is committed in a topic, partition by partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True}, logger=QUIET)
    try:
        partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found, open_partitions = [], set(partitions)
        while open_partitions:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{topic} was not read to its end"
            if message.error() is not None:
                open_partitions.discard(message.partition())
                continue
            headers = {name: (raw or b"").decode(errors="replace") for name, raw in message.headers() or ()}
            found.append(Seen(topic, message.partition(), message.offset(), headers, message.value() or b""))
        return sorted(found, key=lambda each: (each.partition, each.offset))
    finally:
        consumer.close()


class DemoRun:
    """`uow demo --json` with more options; its folder is `folder`."""

    def __init__(self, uow: Path, tmp: Path, options: Sequence[str]) -> None:
        self.folder = tmp / "demo"
        command = [str(uow), "demo", "--json", "--dir", str(self.folder), *options]
        self.child = Process(command, tmp / "demo.log")

    @property
    def report(self) -> dict[str, Any]:
        """The JSON report among what it said."""
        text = self.child.output
        begin = text.index("\n{\n") + 1
        return dict(json.JSONDecoder().raw_decode(text[begin:])[0])

    @property
    def bootstrap(self) -> str:
        return str(tomllib.loads((self.folder / "uow.toml").read_text())["application"]["bootstrap_servers"])

    def records(self, topic: str) -> list[Seen]:
        """Everything that is committed in a topic."""
        return records(self.bootstrap, topic)
