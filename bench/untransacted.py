"""Comparison (d): the worker without transactions: `python -m bench.untransacted UOW_TOML`.

The same rows, ledger and units are sent by an idempotent producer and flushed; the consumer commits positions afterwards. The difference to
the default worker is the price of a transaction. Only for this benchmark: when it is killed, units are doubled.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import confluent_kafka as ck

from uow.config.loading import load
from uow.processor.engine.ports import Meanwhile, Plan
from uow.processor.kafka.clients import CONNECTION, PRODUCER
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.source import KafkaSource
from uow.processor.shell import app
from uow.processor.shell.worker import run_worker

FLUSH_S = 30.0
WRITTEN: dict[tuple[str, int], int] = {}
"""Positions that are written and not yet committed."""


class PlainSink(KafkaSink):
    """Produces and flushes."""

    def open(self, meanwhile: Meanwhile = lambda: None) -> None:
        settings = self._settings
        properties: dict[str, Any] = {**CONNECTION, **PRODUCER, "bootstrap.servers": settings.bootstrap_servers}
        self._producer._handle = ck.Producer({**properties, "enable.idempotence": True})

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        producer = self._producer.handle
        for plan in plans:
            self._produce(producer, plan)
        if producer.flush(FLUSH_S):
            raise RuntimeError("records were not taken")
        WRITTEN.update({(plan.tp.topic, plan.tp.partition): plan.next_offset for plan in plans})


class PlainSource(KafkaSource):
    """Commits what is written, without waiting."""

    def control(self, timeout: float) -> None:
        if WRITTEN:
            self._group.commit(offsets=[ck.TopicPartition(*at, offset) for at, offset in WRITTEN.items()])
            WRITTEN.clear()
        super().control(timeout)


def main(config: str) -> int:
    """Runs it; the exit status."""
    with patch.object(app, "KafkaSink", PlainSink), patch.object(app, "KafkaSource", PlainSource):
        return run_worker(load(Path(config), {}).worker("bench"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
