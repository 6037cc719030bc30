"""Versions of a pipeline and its barriers, as a forwarder meets them (S-16)."""

from __future__ import annotations

from typing import Any

import pytest
from fake_handles import FakeBroker, consumed

import uow
from uow import errors
from uow.topics.pipeline import CHANGES, PipelineVersions

BARRIER, VERSION = "uow-barrier", "uow-pipeline-version"


def told(*marks: tuple[int, str, bytes]) -> list[str]:
    """The complaint about each of these records (offset, header, value); an empty header is none."""
    versions = PipelineVersions()
    return [versions.complaint(offset, [(name, value)] if name else []) for offset, name, value in marks]


def test_versions_rise_behind_their_barrier_only_and_never_fall_s16() -> None:
    assert told((0, "", b""), (1, BARRIER, b"1"), (2, VERSION, b"1"), (3, VERSION, b"1")) == [""] * 4
    assert told((0, VERSION, b"4"), (1, VERSION, b"4")) == ["", ""], "the first one is taken as it is"
    *_, falls = told((0, BARRIER, b"2"), (1, VERSION, b"1"))
    assert falls == "pipeline version 1 behind version 2: it came another way than the records before it"
    for late in ("", "x"):
        assert "version 0 behind version 2" in told((0, BARRIER, b"2"), (1, late and VERSION, late.encode()))[1]
    rises, *rest = told((0, "", b""), (1, VERSION, b"1"), (1, VERSION, b"1"), (2, "", b""))[1:]
    assert "no barrier between them" in rises
    assert [bool(each) for each in rest] == [True, False], "it stays refused, and what goes on as before is taken"


def test_a_reader_that_goes_back_meets_the_versions_of_there() -> None:
    marks = [(0, "", b""), (1, BARRIER, b"1"), (2, VERSION, b"1")]
    assert told(*marks, *marks, *marks[1:]) == [""] * 8
    versions = PipelineVersions()
    for number in range(3 * CHANGES):
        assert not versions.complaint(number, [(BARRIER, b"%d" % (number + 1))])
    assert len(versions._changes) == CHANGES


@pytest.fixture
def pipeline(fake: FakeBroker) -> FakeBroker:
    fake.topics = {"in": 2, "out": 2, "other": 3}
    return fake


def put(fake: FakeBroker, *headers: tuple[str, bytes], partition: int = 1, topic: str = "in") -> None:
    offset = len([each for each in fake.records if (each.topic(), each.partition()) == (topic, partition)])
    fake.records.append(consumed(b"v", headers=[*headers], topic=topic, partition=partition, offset=offset))


def test_a_forwarder_keeps_the_partition_of_a_barrier_and_stands_at_a_record_that_came_another_way_s16(
    pipeline: FakeBroker, connection: uow.Connection
) -> None:
    for mark in ((VERSION, b"1"), (BARRIER, b"2"), (VERSION, b"2"), (VERSION, b"1")):
        put(pipeline, mark)
    reader = connection.messages("in", group="g", order="preserve")
    for barrier in (None, 2, None):
        message = next(reader)
        assert message.barrier == barrier
        connection.forward(message, to="out")
    assert [(sent.to, sent.headers) for sent in pipeline.visible] == [
        (-1, [(VERSION, b"1")]),
        (1, [(BARRIER, b"2")]),
        (-1, [(VERSION, b"2")]),
    ]
    with pytest.raises(errors.OrderBlockedError, match="pipeline version 1 behind version 2"):
        reader.receive(0)


def test_who_keeps_no_order_takes_every_version(pipeline: FakeBroker, connection: uow.Connection) -> None:
    for version in (b"2", b"1", b"3"):
        put(pipeline, (VERSION, version))
    reader = connection.messages("in", group="g")
    assert [next(reader).header(VERSION) for _ in range(3)] == ["2", "1", "3"]


def test_a_pipeline_is_drained_once_its_barrier_is_in_every_partition_s16(
    pipeline: FakeBroker, connection: uow.Connection
) -> None:
    """What else comes out meanwhile is no barrier of it."""
    pipeline.ends = {("out", 0): 0, ("out", 1): 0}

    def come_out(*partitions: int) -> Any:
        def commit() -> None:
            for partition in partitions:
                put(pipeline, (BARRIER, b"2"), partition=partition, topic="out")
                put(pipeline, (BARRIER, b"3"), partition=partition, topic="out")

        return commit

    pipeline.before["commit_transaction"] = come_out(0, 1)
    connection.drain("in", "out", 3, timeout=5)
    assert [(sent.topic(), sent.to, sent.key, sent.headers) for sent in pipeline.visible] == [
        ("in", number, None, [(BARRIER, b"3")]) for number in (0, 1)
    ]
    pipeline.records, pipeline.before["commit_transaction"] = [], come_out(0)
    with pytest.raises(errors.ReconnectTimeoutError, match="has not come to out, partition 1, within"):
        connection.drain("in", "out", 3, timeout=0.05)
    assert all(each.closed for each in pipeline.consumers)


@pytest.mark.parametrize(("last", "version", "setting"), [("out", 0, "version"), ("other", 1, "partitions")])
def test_what_cannot_be_drained_is_refused_and_nothing_is_sent(
    pipeline: FakeBroker, connection: uow.Connection, last: str, version: int, setting: str
) -> None:
    with pytest.raises(errors.ConfigError, match=setting):
        connection.drain("in", last, version)
    assert pipeline.visible == []
    assert all(each.closed for each in pipeline.consumers)
