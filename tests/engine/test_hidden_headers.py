"""Headers that the Kafka client shows to nobody: more than 100,000 of them, or broken ones. Such a record is refused, and we write none."""

from __future__ import annotations

from typing import Any

import pytest

from processor.engine import outputs, shapes
from processor.engine.ports import Output
from processor.engine.stayed import whole_outputs
from tests.core.script import TOPICS, FakeRecord, Story, bare, c, plain, story
from topics.partitioner import partition_for
from topics.policies import HandlingPolicy, Oversize, Shape


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


def limited(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in (outputs, shapes):
        monkeypatch.setattr(module, "HEADERS_LIMIT", most)


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
