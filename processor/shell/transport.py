"""Faust transport `uow://`, registered under the entry-point group `faust.transports`. No decision is made here.

Belongs here: what Faust asks of a transport, a consumer and a producer, and nothing else; the work is the bridge's and the driver's.
Does not belong here: threads, Kafka. Faust's own consumer, producer, acknowledgement and recovery take no part: topics are declared with
`acks=False`, which turns acknowledgement off in the compiled and in the plain stream alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import confluent_kafka
from faust import Schema
from faust.transport import base
from faust.types import TP

from uow.processor.shell.bridge import Bridge


class BatchSchema(Schema[Any, Any]):
    """`app.topic(..., schema=BatchSchema())`: the value is an object already, nothing is decoded."""

    def compile(self, app: Any, **kwargs: Any) -> Any:
        """A decoder that only wraps."""

        async def decode(message: Any, *, propagate: bool = False) -> Any:
            return app.create_event(None, message.value, None, message)

        return decode


class Consumer(base.Consumer):
    """Faust's consumer: starts the driver once agents and tables are ready, and stops it."""

    app: Any
    bridge: Bridge | None = None

    # -- Faust calls

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Called when the agents' topics are known: start reading. Other topics would need another subscription and are refused."""
        known = set(self.app.status.destinations)
        if set(topics) != known:
            raise RuntimeError(f"this worker reads {sorted(known)} only, agents ask for {sorted(topics)}")
        if self.bridge is None:
            self.app.flow_control.resume()
            self.bridge = Bridge(self.app, self.callback, self.crash)
            self.bridge.start()

    async def drain(self) -> None:
        """Finish, commit, leave; called by the app before Faust suspends its flow."""
        if self.bridge is not None:
            await self.bridge.drain(self.app.worker_settings.drain_timeout_ms / 1000)

    async def on_task_error(self, exc: BaseException) -> None:
        """An agent died."""
        if self.bridge is not None:
            self.bridge.on_agent_died(exc)

    async def on_stop(self) -> None:
        """The service stops."""
        await self.drain()

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Positions move in the driver's transactions only."""
        return False

    async def wait_empty(self) -> None:
        """Nothing waits for acknowledgement."""

    def assignment(self) -> set[TP]:
        """Partitions owned."""
        return self.bridge.assignment if self.bridge is not None else set()

    # -- demanded by the abstract base, never used

    async def _commit(self, offsets: Any) -> bool:
        return False

    async def seek_to_committed(self) -> dict[TP, int]:
        return {}

    async def perform_seek(self) -> None: ...

    async def _seek(self, partition: TP, offset: int) -> None: ...

    async def seek_wait(self, partitions: Any) -> None: ...

    async def _getmany(self, active_partitions: Any, timeout: float) -> dict[TP, Any]:
        return {}

    def _to_message(self, tp: TP, record: Any) -> Any: ...

    def _new_topicpartition(self, topic: str, partition: int) -> TP:
        return TP(topic, partition)

    async def create_topic(self, *args: Any, **kwargs: Any) -> None: ...

    def highwater(self, tp: TP) -> int:
        return 0

    async def position(self, tp: TP) -> int | None:
        return None

    async def earliest_offsets(self, *partitions: TP) -> dict[TP, int]:
        return {}

    async def highwaters(self, *partitions: TP) -> dict[TP, int]:
        return {}

    def topic_partitions(self, topic: str) -> int | None:
        return None

    def key_partition(self, topic: str, key: bytes | None, partition: int | None = None) -> int | None:
        return partition

    def verify_recovery_event_path(self, now: float, tp: TP) -> None: ...


class Producer(base.Producer):
    """Refuses to send: outputs belong into a plan, so that they are in the poll's transaction (ER-01)."""

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        """Always raises."""
        raise NotImplementedError("outputs belong into the batch's plan, so that they are in its transaction")

    send_and_wait = send

    async def flush(self) -> None: ...

    async def create_topic(self, *args: Any, **kwargs: Any) -> None: ...

    def key_partition(self, topic: str, key: bytes) -> TP:
        return TP(topic, 0)

    def supports_headers(self) -> bool:
        return True


class Transport(base.Transport):
    """The driver of Faust's scheme `uow://`."""

    Consumer = Consumer
    Producer = Producer
    default_port = 9092
    driver_version = f"uow=confluent-kafka-{confluent_kafka.__version__}"
