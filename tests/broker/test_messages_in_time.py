"""Single messages of a hop on a real broker: none early, none that has expired; who waits stays in his group (W-08, W-53)."""

from __future__ import annotations

import time

from tests.broker.client_places import Topics
from tests.kafka_broker import Kafka
from uow import connect
from uow.client.timely_messages import MessageReader

SESSION = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def record(seq: int, **times: int) -> tuple[bytes, bytes, dict[str, bytes]]:
    marks = {"uow-id": b"order-1", "uow-seq": b"%d" % seq}
    return b"order-1", b"%d" % seq, marks | {f"uow-{name}-at": b"%d" % at for name, at in times.items()}


def taken(reader: MessageReader, count: int, timeout_s: float) -> list[tuple[int, str]]:
    """Partition and value of messages as they come; none before its time, none after it; each acknowledged."""
    found: list[tuple[int, str]] = []
    until = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < until:
        message = reader.receive(0.2)
        if message is None:
            continue
        assert int(message.header("uow-deliver-at") or 0) <= now_ms()
        found.append((message.partition, message.text()))
        message.acknowledge()
    return found


def test_a_hop_waits_for_a_delivery_time_stays_in_its_group_and_delays_no_other_partition_w08_w53(
    broker: Kafka, unique: str
) -> None:
    """It waits for longer than its session lasts; what waits when it leaves is read by the next member in its own time."""
    topics = Topics(broker.bootstrap)
    topics.make(unique, partitions=2)
    topics.put(unique, record(1, expires=now_ms() - 1), record(2), record(3, deliver=now_ms() + 9_000), record(4))
    topics.put(unique, record(5), partition=1)
    with connect(broker.bootstrap) as connection:
        first = connection.messages(unique, group=unique, kafka=SESSION)
        assert sorted(taken(first, 2, 30)) == [(0, "2"), (1, "5")]
        assert first.given_up == {"expired": 1}
        topics.put(unique, record(6), partition=1)
        assert taken(first, 1, 5) == [(1, "6")]
        assert taken(first, 2, 60) == [(0, "3"), (0, "4")]
        topics.put(unique, record(7, deliver=now_ms() + 3_000), record(8))
        assert taken(first, 1, 1) == []
        second = connection.messages(unique, group=unique, kafka=SESSION)
        both: list[tuple[int, str]] = []
        until = time.monotonic() + 60
        while (
            len(both) < 2 and time.monotonic() < until
        ):  # the partition stays with one or goes to the other, and may be paused there
            both += [*taken(first, 2, 0.3), *taken(second, 2, 0.3)]
        assert both == [(0, "7"), (0, "8")]
    assert topics.committed(unique, unique) == 6
