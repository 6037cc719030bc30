"""One sink for each output of a strict destination (S-03, S-34): leases over a registry in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.processes import PATIENCE_S
from uow import errors
from uow.client.outgoing import OutgoingRecord
from uow.config.loading import load
from uow.ops import leases
from uow.ops.leases import TERM_MS, Leases
from uow.spark_sink.kafka import Cluster, source_options
from uow.topics.strict_registry import Era, StrictRegistry, StrictRules


class Registry:
    """`d.registry` as a compacted log."""

    def __init__(self, *, is_strict: bool = True) -> None:
        self.now = 1_000
        self.records: dict[bytes | None, bytes | None] = {}
        self.on_write: Callable[[], object] = lambda: None
        for each in (StrictRules(strict_order=is_strict), Era(1, {}, 1, "", "")):
            self.records[each.key()] = each.value()

    def read(self, destination: str) -> StrictRegistry:
        registry = StrictRegistry(destination)
        for key, value in self.records.items():
            registry.apply(key, value)
        return registry

    def write(self, record: OutgoingRecord) -> None:
        assert (record.topic, record.partition) == ("d.registry", 0)
        self.records.pop(record.key, None)
        if record.value is not None:
            self.records[record.key] = record.value
        then, self.on_write = self.on_write, lambda: None
        then()

    def sink(self, *outputs: str) -> Leases:
        return Leases(outputs or ("s3://lake",), self.read, self.write, lambda: self.now)


def test_a_second_sink_of_one_output_is_refused_until_the_first_has_gone() -> None:
    registry = Registry()
    first, second, other = registry.sink(), registry.sink(), registry.sink("s3://elsewhere")
    first.take("d")
    with pytest.raises(
        errors.AlreadyAttachedError, match=r"d is strict, and is written to s3://lake by .* ends in 60 s"
    ):
        second.take("d")
    other.take("d")
    first.give_back()
    second.take("d")


def test_the_lease_of_a_sink_that_was_killed_ends_and_one_that_is_renewed_does_not() -> None:
    registry = Registry()
    first = registry.sink()
    first.take("d")
    registry.now += TERM_MS - 1
    first.renew()
    registry.now += TERM_MS - 1
    with pytest.raises(errors.AlreadyAttachedError):
        registry.sink().take("d")
    assert not first.is_lost
    registry.now += 1
    assert first.is_lost
    registry.sink().take("d")


def test_a_lease_that_is_over_is_never_renewed_s34() -> None:
    registry = Registry()
    frozen, second = registry.sink(), registry.sink()
    frozen.take("d")
    registry.now += TERM_MS
    second.take("d")
    for _ in range(2):
        with pytest.raises(errors.FencedError):
            frozen.renew()
        assert frozen.is_lost
    second.renew()
    assert not second.is_lost


def test_a_sink_that_stood_still_while_it_renewed_finds_who_has_begun_meanwhile_s34() -> None:
    registry = Registry()
    frozen, second = registry.sink(), registry.sink()
    frozen.take("d")
    registry.now += TERM_MS - 1
    write = registry.write

    def stands_still(record: OutgoingRecord) -> None:
        if not second.are_held:
            registry.now += 1
            second.take("d")
        write(record)

    frozen._write = stands_still
    with pytest.raises(errors.FencedError, match="written to s3://lake"):
        frozen.renew()
    assert frozen.is_lost
    second.renew()
    assert not second.is_lost, "the one that stood still has taken its record back"


def test_of_two_that_start_at_once_one_at_most_goes_on() -> None:
    registry = Registry()
    first, second = registry.sink(), registry.sink()
    failures: list[Exception] = []

    def start_second() -> None:
        try:
            second.take("d")
        except errors.AlreadyAttachedError as failure:
            failures.append(failure)

    registry.on_write = start_second  # between the first one's lease and its look
    try:
        first.take("d")
    except errors.AlreadyAttachedError as failure:
        failures.append(failure)
    assert failures


def test_a_sink_that_loses_its_lease_ends_with_an_error_and_an_error_of_its_own_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry, stop = Registry(), threading.Event()
    sink = registry.sink()
    monkeypatch.setattr(leases, "Leases", lambda *_: sink)
    monkeypatch.setattr(leases, "RENEW_S", 0.001)

    def hold(*, fails: bool) -> None:
        stop.clear()
        registry.now = 1_000
        monkeypatch.setattr(sink, "renew", lambda: None)  # nothing arrives
        with leases.leased(load(None), ["d"], [], stop):
            registry.now += TERM_MS
            assert stop.wait(PATIENCE_S)
            if fails:
                raise ZeroDivisionError

    with pytest.raises(errors.FencedError, match="could not be renewed in time"):
        hold(fails=False)
    with pytest.raises(ZeroDivisionError):
        hold(fails=True)


def test_nobody_chooses_how_a_sink_reads() -> None:
    """S-34: committed records, from the first one on, nothing skipped, and one Spark partition for each of Kafka's, since `minPartitions` is not set."""
    contrary = {"isolation.level": "read_uncommitted", "auto.offset.reset": "latest", "client.id": "minPartitions"}
    assert source_options(Cluster("h:1", contrary), ["d.units"]) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.isolation.level": "read_committed",
        "subscribe": "d.units",
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


def test_a_destination_that_is_not_strict_needs_no_lease() -> None:
    registry = Registry(is_strict=False)
    before = {**registry.records}
    registry.sink().take("d")
    registry.sink().take("d")
    assert registry.records == before
