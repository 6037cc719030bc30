"""librdkafka's producer, with a bound on the one transactional call that has none.

Belongs here: that call. Does not belong here: the consequence of a time-out (`uow.processor.kafka.transactional_producer`).

`send_offsets_to_transaction` does not keep its time-out while the group's coordinator cannot be found or reached: it waits for a change
that may never come (librdkafka issue 5456, open in 2.16). A worker would stand still for ever, with its partitions. So the call is made
in a thread of its own, and left behind when it is overdue. Its handle can do nothing more: callers throw it away after a time-out,
and the next epoch fences whatever it may still send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import confluent_kafka as ck

GRACE_S = 0.5
"""Beyond the time-out: most errors the library does report in time."""


class BoundedProducer(ck.Producer):
    """`confluent_kafka.Producer`, every call of which returns in its time."""

    def send_offsets_to_transaction(
        self, positions: list[ck.TopicPartition], group_metadata: Any, timeout: float = -1
    ) -> None:
        """As the library's.

        Raises:
            KafkaException: The library's, or `_TIMED_OUT`.
        """
        send = super().send_offsets_to_transaction
        if not returns(lambda: send(positions, group_metadata, timeout), timeout + GRACE_S if timeout >= 0 else None):
            text = f"offsets were not taken in {timeout:g} s: the group's coordinator cannot be found or reached"
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, text, retriable=True))


def returns(call: Callable[[], None], within_s: float | None) -> bool:
    """True if a call returned in time; raises its exception. One that does not return is left behind in its thread."""
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            call()
            outcome.put(None)
        except BaseException as failure:  # noqa: BLE001 - handed over to whoever waits
            outcome.put(failure)

    threading.Thread(target=run, name="uow-bounded", daemon=True).start()
    try:
        failure = outcome.get(timeout=within_s)
    except Empty:
        return False
    if failure is not None:
        raise failure
    return True
