"""Headers that the Kafka client shows to nobody: more than 100,000 of them, or broken ones. Such a record is refused, and we write none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.script import TOPICS, Story, bare, c, plain, story
from tests.fake_record import FakeRecord
from uow.processor.engine.batch import Batch
from uow.processor.engine.external_values import whole_outputs
from uow.processor.engine.hidden_headers import HiddenHeaders
from uow.processor.engine.ports import Output, Tp
from uow.topics import record_size
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    FieldSource,
    HandlingPolicy,
    Oversize,
    Shape,
)


def told(*records: FakeRecord, **settings: Any) -> list[Output]:
    """What comes out of records as they are read."""
    played = Story(story(**settings).task)
    played.lying = {record.offset(): record for record in records}
    return list(whole_outputs(played.task.process(records), played))


@pytest.mark.parametrize("handling", HandlingPolicy)
@pytest.mark.parametrize("shown", [None, []])
def test_a_record_whose_headers_are_hidden_is_refused_with_what_is_known_of_it(
    handling: HandlingPolicy, shown: Any
) -> None:
    sent = [FakeRecord(offset, shown, b"v%d" % offset, b"k", is_hidden=offset == 1) for offset in range(3)]
    first, hidden, last = told(*sent, handling_policy=handling)
    assert [(each.topic, each.value) for each in (first, last)] == [(TOPICS.units, b"v0"), (TOPICS.units, b"v2")]
    assert (hidden.topic, hidden.partition, hidden.key, hidden.value) == (TOPICS.rejected, -1, b"k", b"v1")
    said = dict(hidden.headers)
    assert (said["uow-error-class"], said["uow-error-case"]) == (b"DecodeError", b"headers")
    assert said["uow-source"] == b"D.components/0/1"
    assert b"cannot be read" in (said["uow-error-text"] or b"")


def test_only_what_passes_without_headers_is_asked_about() -> None:
    class Nobody:
        def read(self, *asked: Any) -> Any:
            raise AssertionError

        hidden = close = read

    played = story(c(1), bare([("x", b"")]), c(2, end=True), c(2))
    (plan,) = played.plans
    assert list(whole_outputs(plan, Nobody())) == plan.outputs
    (plan,) = story(plain()).plans
    with pytest.raises(AssertionError):
        list(whole_outputs(plan, Nobody()))


def by_value(unit: str, seq: int, end: bool = False) -> bytes:
    return json.dumps({"uow-id": unit, "uow-seq": seq, "uow-end": end}).encode()


def test_where_fields_are_in_the_value_hidden_headers_are_found_before_a_record_is_judged() -> None:
    """Else a component is held, and delivered, without the headers that it has."""
    played = Story(story(field_source=FieldSource.VALUE).task)
    sent = [
        FakeRecord(0, None, by_value("a", 1), b"a"),
        FakeRecord(1, None, by_value("a", 2, True), b"a", is_hidden=True),
        FakeRecord(2, [], b"plain", b"k"),
        FakeRecord(3, None, b"hidden plain", b"k", is_hidden=True),
        FakeRecord(4, [("x", b"")], by_value("a", 2, True), b"a"),
    ]
    played.lying = {record.offset(): record for record in sent}
    batch = Batch(played.task.tp, records=list(sent))
    HiddenHeaders([TOPICS.components], played).replace([batch])
    played.plans.append(played.task.process(batch.records))
    outputs = played.outputs
    assert [output.value for output in outputs if output.topic == TOPICS.rejected] == [sent[1].value(), b"hidden plain"]
    assert all(
        dict(output.headers)["uow-error-case"] == b"headers" for output in outputs if output.topic == TOPICS.rejected
    )
    assert b"plain" in [output.value for output in outputs if output.topic == TOPICS.units]
    assert [len(each.components) for each in played.units] == [2]
    assert not played.plans[0].bare, "nobody is asked twice"


def test_other_destinations_pay_nothing_for_hidden_headers_in_values() -> None:
    class Nobody:
        def hidden(self, *asked: Any) -> Any:
            raise AssertionError

        read = close = hidden

    records: list[Any] = [FakeRecord(0, None, by_value("a", 1), b"a")]
    batches = [Batch(Tp(TOPICS.components, 0), records=records), Batch(Tp("E.components", 0))]
    HiddenHeaders(["E.components"], Nobody()).replace(batches)
    assert batches[0].records is records


def limited(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(record_size, "HEADERS_LIMIT", most)


def most_headers(played: Story) -> int:
    return max(len(output.headers) for output in played.outputs)


def test_what_is_refused_with_too_many_headers_for_a_record_of_ours_says_where_they_stayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the reasons would be hidden with them."""
    limited(monkeypatch, 40)
    played = story(bare([("uow-id", b"a"), *[("x", b"")] * 38]), bare([("uow-id", b"a"), *[("x", b"")] * 35]))
    stripped, whole = played.outputs
    assert (stripped.topic, whole.topic) == (TOPICS.rejected, TOPICS.rejected)
    assert (stripped.key, stripped.value, len(stripped.headers), len(whole.headers)) == (None, None, 4, 40)
    assert b"43 headers fit no record" in (dict(stripped.headers)["uow-error-text"] or b"")


@pytest.mark.parametrize(
    ("settings", "topic"),
    [
        ({}, TOPICS.errors),
        ({"shape": Shape.REFERENCE}, TOPICS.errors),
        ({"shape": Shape.CONSECUTIVE}, TOPICS.errors),
        ({"oversize": Oversize.CONSECUTIVE}, TOPICS.errors),
    ],
)
def test_a_unit_whose_headers_nobody_could_read_fails_instead(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], topic: str
) -> None:
    limited(monkeypatch, 40)
    played = story(c(1, end=True, user=[("x", "")] * 35), **settings)
    assert played.outputs[0].topic == topic
    assert most_headers(played) <= 40
    fits = story(c(1, end=True, user=[("x", "")] * 10), **settings)
    assert fits.outputs[0].topic == TOPICS.units


ELSEWHERE = next(name for name in map(str, range(99)) if partition_for(name.encode(), 2) == 1)


def test_a_component_that_would_have_too_many_headers_is_not_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 40)
    played = story(c(1, id=ELSEWHERE, user=[("x", "")] * 38), partitions=2, partition=0)
    assert most_headers(played) <= 40
    assert played.outputs[0].topic == TOPICS.rejected
