"""Comparison (d): the worker without transactions: `python -m bench.untransacted UOW_TOML`.

The same rows, ledger and units by an idempotent producer, flushed; positions are committed by the consumer, afterwards. What the default
worker costs beyond it is the price of a transaction. For the bench alone: killed, it doubles units.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import confluent_kafka as ck

from processor.engine.ports import Meanwhile, Plan
from processor.kafka.clients import CONNECTION, PRODUCER
from processor.kafka.sink import KafkaSink
from processor.kafka.source import KafkaSource
from processor.shell import app
from processor.shell.worker import run_worker
from uow.config import load

FLUSH_S = 30.0
WRITTEN: dict[tuple[str, int], int] = {}
"""Positions that are written and not yet committed."""


class PlainSink(KafkaSink):
    """Produces and flushes."""

    def open(self, meanwhile: Meanwhile = lambda: None) -> None:
        settings = self._settings
        properties: dict[str, Any] = {**CONNECTION, **PRODUCER, "bootstrap.servers": settings.bootstrap_servers}
        self._producer = ck.Producer({**properties, "enable.idempotence": True})

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        producer = self._producer
        assert producer is not None
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
