"""What floods and bombs cost a real worker: its memory stays bounded, other groups are unharmed, and people see it (ER-19, W-115)."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, Producer

from tests.broker.worker_places import Destination, Worker, alter_topic
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.topics.partitioner import partition_for

SLOW = 90.0
MEMORY_BYTES = 16_777_216
FLOOD = 5_000
pytestmark = pytest.mark.timeout(240)


def metric(worker: Worker, name: str) -> dict[str, float]:
    """By partition."""
    address = worker.child.wait_output("pages on http://").partition("pages on ")[2].partition("/groups/")[0]
    with urllib.request.urlopen(f"{address}/metrics", timeout=PATIENCE_S) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name}{{")]
    return {line.partition('partition="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def bomb(place: Destination, codec: str, id: str, value: bytes, topic: str = "") -> str | None:
    """Sends one record that is small only while it is compressed, a component unless told otherwise; what the broker says against it."""
    told: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "compression.type": codec,
            "message.max.bytes": 300_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    headers: Any = [("uow-id", id.encode()), ("uow-seq", b"1"), ("uow-end", b"true")]
    partition = partition_for(id.encode(), place.partitions)
    producer.produce(
        topic or place.components, value, id, partition, lambda error, _: told.append(error), headers=headers
    )
    assert not producer.flush(60)
    return None if told[0] is None else str(told[0].name())


def test_flood_of_open_groups_pauses_partitions_which_go_on_when_there_is_room(place: Destination) -> None:
    """10,000 groups of a kilobyte need more than the limit; some wait, all are delivered in the end, and a third partition never notices."""
    place.create({"memory_limit_bytes": MEMORY_BYTES, "poll_records": 500})
    floods = {str(partition): place.fitting(partition, FLOOD) for partition in (0, 1)}
    (innocent,) = place.fitting(2, 1)
    worker = place.worker()
    place.send([(name, 1, False) for flood in floods.values() for name in flood], b"v" * 1_000)
    wait_for(lambda: sum(metric(worker, "uow_paused").values()) >= 1, SLOW, lambda: str(worker.page()))
    (waiting,) = (number for number, paused in metric(worker, "uow_paused").items() if paused)
    stands_at = metric(worker, "uow_position")[waiting]
    place.send([(name, 2, True) for name in floods.pop(waiting)])
    place.send([(innocent, seq, seq == 2) for seq in (1, 2)])
    wait_for(lambda: innocent.encode() in place.delivered(), SLOW)
    assert MEMORY_BYTES < sum(metric(worker, "uow_memory_bytes").values()) < 1.5 * MEMORY_BYTES
    assert worker.partitions()[waiting]["paused"]
    assert metric(worker, "uow_position")[waiting] == stands_at
    place.send([(name, 2, True) for flood in floods.values() for name in flood])
    place.wait_delivered(2 * FLOOD + 1, SLOW)
    wait_for(lambda: not sum(metric(worker, "uow_paused").values()), SLOW)
    assert worker.child.terminate(90) == 0
    place.verify()


def trust_producers(place: Destination, admin: Any) -> None:
    """As topics were before `uow topics create` made them otherwise, or as somebody wants them."""
    alter_topic(admin, place.components, compression_type="producer")
    told = "compression.type is producer, should be uncompressed"

    def said(*command: str) -> tuple[bool, int]:
        done = CliRunner().invoke(main, [*command, "-c", str(place.config)])
        return told in done.output, done.exit_code

    wait_for(lambda: said("topics", "check") == (True, 1), PATIENCE_S, "the broker tells of the change")
    assert said("doctor") == (True, 0), "worth a look, and nothing wrong"


def test_components_that_inflate_to_much_more_than_they_were_fail_their_groups_and_no_other(
    place: Destination, admin: Any
) -> None:
    """A few kilobytes on the wire, 12 MB in the worker's hands."""
    place.create(outcomes="all")
    trust_producers(place, admin)
    worker = place.worker()
    assert "compression.type is producer, should be uncompressed" in worker.child.output
    before, after, *huge = place.fitting(0, 4)
    place.send([(before, 1, True)])
    for codec, name in zip(("zstd", "gzip"), huge, strict=True):
        assert bomb(place, codec, name, bytes(12_000_000)) is None
    place.send([(after, 1, True)])
    place.wait_delivered(2, SLOW)
    assert set(place.delivered()) == {before.encode(), after.encode()}
    outcomes = [dict(record.headers()) for record in place.read(f"{place.name}.outcomes")]
    reasons = {each["uow-id"].decode(): each["uow-reason"] for each in outcomes}
    assert [reasons[name] for name in huge] == [b"limit"] * 2
    assert worker.child.terminate(90) == 0


def test_batch_that_the_library_will_not_inflate_blocks_its_partition_and_says_so(
    place: Destination, admin: Any
) -> None:
    """zstd ends at `receive.message.max.bytes`; the library would ask for the same batch for ever, and say nothing to anybody."""
    place.create()
    trust_producers(place, admin)
    worker = place.worker()
    huge, behind = place.fitting(0, 2)
    (other,) = place.fitting(1, 1)
    assert bomb(place, "zstd", huge, bytes(110_000_000)) is None
    place.send([(behind, 1, True), (other, 1, True)])
    wait_for(lambda: worker.partitions()["0"]["blocked"], SLOW)
    assert "cannot be fetched (Decompression" in worker.partitions()["0"]["blocked"]
    assert metric(worker, "uow_blocked")["0"] == 1
    wait_for(lambda: place.delivered() == {other.encode(): 1}, SLOW)
    assert worker.child.terminate(90) == 0


def test_broker_refuses_what_is_small_only_while_it_is_compressed(place: Destination) -> None:
    """On every topic that others write and a worker reads, as `uow topics create` makes them."""
    place.create(routing="path")
    (name,) = place.fitting(0, 1)
    for topic in (place.components, f"{place.name}.commands", f"A-{place.name}-{place.name}-path-map"):
        for codec in ("zstd", "gzip", "lz4", "snappy"):
            assert bomb(place, codec, name, bytes(2_000_000), topic) == "MSG_SIZE_TOO_LARGE"
    assert bomb(place, "zstd", name, bytes(100_000_000)) == "MSG_SIZE_TOO_LARGE", "3 kB on the wire"
    assert bomb(place, "zstd", name, bytes(500_000)) is None
