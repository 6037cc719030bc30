"""Draining a pipeline of forwarders: a barrier goes into every partition of its first topic, and is awaited in its last one (S-16).

Belongs here: sending and awaiting. Does not belong here: what a barrier means (`uow.topics.pipeline`).
"""

from __future__ import annotations

import math
import time
from contextlib import closing

from uow.client.following import Follower
from uow.client.kafka_port import STEP_S, ConsumedRecord, coordinates, raw_headers
from uow.client.outgoing import OutgoingRecord
from uow.client.transaction import OneTransaction
from uow.errors import ReconnectTimeoutError
from uow.schemas.error_classes import DecodeError
from uow.topics.headers import BARRIER
from uow.topics.pipeline import barrier_in


def barriers(topic: str, partitions: int, version: int) -> list[OutgoingRecord]:
    """One for each partition."""
    return [OutgoingRecord(topic, None, None, [(BARRIER, b"%d" % version)], number) for number in range(partitions)]


def drain(
    transaction: OneTransaction, first: tuple[str, int], last: Follower, version: int, timeout: float | None
) -> None:
    """Sends the barriers, and returns once one has come in every partition of the last topic.

    Args:
        transaction: For the barriers.
        first: The first topic, and its number of partitions.
        last: Follows the last one, as of now.
        version: Of the pipeline, from then on.
        timeout: Seconds; None: for ever.

    Raises:
        ReconnectTimeoutError: Not in time: do it again.
        UowError: As for a commit.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    with closing(last):
        try:
            transaction.begin()
            for barrier in barriers(*first, version):
                transaction.produce(barrier)
            transaction.commit(patience=transaction.patience())
        finally:
            transaction.end()
        missing = last.partitions
        while missing:
            record = last.poll(STEP_S)
            if record is not None and _announced(record) == version:
                missing.discard(coordinates(record)[1])
            if missing and time.monotonic() >= until:
                where = ", ".join(map(str, sorted(missing)))
                text = f"the barrier of version {version} has not come to {last.topic}, partition {where}"
                raise ReconnectTimeoutError(f"{text}, within {timeout:g} s")


def _announced(record: ConsumedRecord) -> int | None:
    try:
        return barrier_in(raw_headers(record))
    except DecodeError:
        return None
