"""Kafka in memory behaves as Kafka where the engine could tell."""

from __future__ import annotations

import pytest

from tests.shell.memory_kafka import (
    MemoryKafka,
    MemoryLogReader,
    MemorySink,
    MemorySource,
)
from uow.processor.engine.ports import Plan, StaleGeneration, Tp
from uow.processor.sim.simulated_kafka import State
from uow.schemas.error_classes import FencedError

IN = Tp("in", 0)


def member(kafka: MemoryKafka, name: str, events: list[str]) -> MemorySource:
    source = MemorySource(kafka, name)

    def on_assign(tps: list[Tp]) -> None:
        events.extend(f"{name}+{tp.partition}" for tp in tps)

    def on_revoke(tps: list[Tp]) -> list[Tp]:
        events.extend(f"{name}-{tp.partition}" for tp in tps)
        return tps

    source.open(["in"], on_assign, on_revoke, on_revoke)
    return source


def a_plan() -> Plan:
    plan = Plan(IN, "changelog", "ledger", 1, "commands", 0)
    plan.changelog.append((b"k", b"v"))
    return plan


def test_end_of_a_transaction_takes_an_offset_and_is_no_record() -> None:
    kafka = MemoryKafka()
    sink, source = MemorySink(kafka, "t"), member(kafka, "a", [])
    sink.open()
    source.control(0)
    sink.write([a_plan()], source.token())
    log = Tp("changelog", 0)
    assert [record.offset() for record in kafka.visible(log)] == [0]
    assert MemoryLogReader(kafka).bounds([log])[log] == (0, 2)


def test_nothing_above_an_open_transaction_is_visible_to_a_committed_reader() -> None:
    kafka = MemoryKafka()
    with kafka.lock:
        kafka.produce("t", IN, b"k", b"open", [])
    kafka.append("in", b"k", b"after", partition=0)
    assert kafka.visible(IN) == []
    with kafka.lock:
        kafka.end("t", State.ABORTED)
    assert [record.value() for record in kafka.visible(IN)] == [b"after"]


def test_newer_producer_with_the_same_id_ends_the_orphan_and_fences_the_older() -> None:
    kafka = MemoryKafka()
    older, newer, source = MemorySink(kafka, "t"), MemorySink(kafka, "t"), member(kafka, "a", [])
    older.open()
    source.control(0)
    with kafka.lock:
        kafka.produce("t", IN, b"k", b"orphan", [])
    newer.open()
    assert kafka.visible(IN) == []
    assert kafka.stable_end(IN) == 2
    with pytest.raises(FencedError):
        older.write([a_plan()], source.token())


def test_partition_goes_to_its_next_owner_only_when_the_last_one_let_it_go() -> None:
    kafka, events = MemoryKafka(), list[str]()
    first = member(kafka, "a", events)
    first.control(0)
    second = member(kafka, "b", events)
    second.control(0)
    assert events == ["a+0", "a+1"]
    first.control(0)
    second.control(0)
    assert events == ["a+0", "a+1", "a-1", "b+1"]


def test_group_metadata_of_before_a_join_is_refused() -> None:
    kafka = MemoryKafka()
    sink, source = MemorySink(kafka, "t"), member(kafka, "a", [])
    sink.open()
    source.control(0)
    token = source.token()
    member(kafka, "b", [])
    source.control(0)
    with pytest.raises(StaleGeneration):
        sink.write([a_plan()], token)
    assert kafka.visible(Tp("changelog", 0)) == []
