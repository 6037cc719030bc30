"""Components of clients that have no headers: three fields of a JSON value stand in for them (W-24)."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.script import TOPICS, Sent, Step, bare, c, context_of, passed, play, policy_of, refused, story, unit
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT, FakeRecord
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    BadUnitIdError,
    DecodeError,
    DuplicateSequenceNumberError,
    UnitConflictError,
)
from uow.spark_sink.recompute import Arrived, recompute
from uow.topics.fields import fields_of
from uow.topics.headers import (
    ID,
    Marks,
    Reading,
    ValueReading,
)
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    FieldSource,
    OutcomesPolicy,
)

VALUE: dict[str, Any] = {"field_source": FieldSource.VALUE}
NAMES = ("uow-id", "uow-seq", "uow-end")


def j(seq: object = None, *, end: object = None, id: object = "a", headers: Any = None, **more: object) -> Sent:
    """A component that says so in its value only."""
    said = {"uow-id": id, "uow-seq": seq, "uow-end": end} | more
    value = json.dumps({name: item for name, item in said.items() if item is not None}).encode()
    return bare(headers, value, str(id).encode())


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_fields_of_a_json_value_make_a_unit_when_the_option_is_on_w24(order: tuple[int, ...]) -> None:
    sent = [j(1, item="book"), j("2"), j(3, end=True)]
    assert play(*(sent[at] for at in order), **VALUE) == [unit(1, 2, 3)]


def test_without_the_option_they_are_plain_traffic_w24() -> None:
    sent = j(1, end=True)
    assert play(sent) == [passed(sent.value.decode())]  # type: ignore[union-attr]


def test_value_and_headers_stay_as_they_came_w24() -> None:
    sent = j(1, end=True, headers=[("note", b"\xff")])
    (made,) = story(sent, j(1, id="b", end="TRUE"), **VALUE).units[:1]
    (component,) = made.components
    assert (component.seq, component.end, component.headers, component.value) == (
        1,
        True,
        (("note", b"\xff"),),
        sent.value,
    )


def test_headers_and_fields_feed_the_same_group_and_headers_come_first_w24() -> None:
    both = c(2, end=True, id="a", value=b'{"uow-id": "other", "uow-seq": 7}')
    assert play(j(1), both, **VALUE) == [unit(1, 2)]


def test_the_same_rules_hold_as_for_headers_w24() -> None:
    rows: list[tuple[Step, Any, str]] = [
        (j(id=1), BadSequenceNumberError, "a"),
        (j(0), BadSequenceNumberError, "b"),
        (j("+5"), BadSequenceNumberError, "malformed"),
        (j(5.0), BadSequenceNumberError, "malformed"),
        (j([1]), BadSequenceNumberError, "malformed"),
        (j(1, end="yes"), BadSequenceNumberError, "malformed-end"),
        (j(1, id=""), BadUnitIdError, "empty"),
        (j(1, id={"of": "a"}), BadUnitIdError, "undecodable"),
        (bare(None, b'{"uow-id": "\\ud800", "uow-seq": 1}', b"a"), BadUnitIdError, "undecodable"),
        (bare(None, b'{"uow-id": "a", "uow-id": "b", "uow-seq": 1}', b"a"), BadUnitIdError, "repeated"),
        (bare(None, b'{"uow-id": "a", "uow-seq": 1, "uow-seq": 2}', b"a"), BadSequenceNumberError, "malformed"),
        (j(1, headers=[("uoo-name", b"x")]), UnitConflictError, ""),
    ]
    for sent, error, case in rows:
        assert isinstance(sent, Sent)
        assert play(sent, **VALUE) == [refused(sent, error, case)]
    again = j(1)
    assert play(j(1), again, **VALUE) == [refused(again, DuplicateSequenceNumberError, "duplicate")]


@pytest.mark.parametrize(
    "value",
    [None, b"", b"plain", b"\xff", b"[]", b'["uow-id"]', b"7", b'"uow-id"', b"{", b"{}", b'{"uow-seq": 1, "uow-end": true}', b'{"uow-id": null}', b'{"deep": {"uow-id": "a", "uow-seq": 1}}', b"[" * 100_000, b'{"a": NaN, "n": ' + b"9" * 5_000 + b"}"],
)  # fmt: skip
def test_any_other_value_is_plain_traffic_w24(value: bytes | None) -> None:
    played = story(bare(None, value, b"k"), **VALUE)
    (output,) = played.outputs
    assert (output.topic, output.value) == (TOPICS.units, value)


@given(st.binary(max_size=80) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner)).map(lambda document: json.dumps(document).encode()))  # fmt: skip
def test_any_bytes_have_fields_or_none_w24(value: bytes) -> None:
    assert all(name in NAMES and isinstance(raw, bytes) for name, raw in fields_of(value, NAMES))
    assert ValueReading().read(None, value) is None or b"uow-id" in value or b"\\u" in value


def test_finished_unit_is_left_alone_whatever_its_value_says_w24() -> None:
    """W-96: a unit that was sent on passes through."""
    sent = bare([("uow-id", b"a"), ("uow-kind", b"unit")], b'{"uow-id": "a", "uow-seq": 1}', b"a")
    (output,) = story(sent, **VALUE).outputs
    assert (output.topic, output.headers) == (TOPICS.units, [("uow-id", b"a"), ("uow-origin-kind", b"unit")])


def test_component_under_another_key_is_sent_on_to_its_ids_partition_w24() -> None:
    home = partition_for(b"a", 8)
    sent = j(1, end=True)
    (rerouted,) = story(sent, partition=1 - min(home, 1), partitions=8, **VALUE).outputs
    assert (rerouted.topic, rerouted.partition) == (TOPICS.components, home)
    (made,) = story(bare(rerouted.headers, rerouted.value, rerouted.key), partition=home, partitions=8, **VALUE).units
    assert made.id == "a"


@pytest.mark.parametrize("later", [FieldSource.VALUE, FieldSource.HEADERS])
def test_restart_finds_them_again_as_they_were_read_w24(later: FieldSource) -> None:
    """W-124: the ledger names the reading, so a replay reads as the records were read then."""
    wide = ReplayLimits(1_000_000, 1 << 40, 1 << 40)
    task, logs = PartitionTask(INPUT, context_of(policy_of(**VALUE), replay=wide)), Logs(INPUT)
    records = [FakeRecord(at, None, (j(at + 1).value), b"a", 1_000, INPUT) for at in range(3)]
    logs.take_input(records)
    logs.add(task.process(records))
    context = context_of(policy_of(field_source=later), replay=wide)
    again = restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]
    assert sorted(again.groups[b"a"].held) == [1, 2, 3]


def test_reading_is_named_by_its_code_w24() -> None:
    policy = DestinationPolicy(accept_aliases=frozenset({AliasFamily.JMS}), **VALUE)
    reading = Reading.of(policy)
    again = Reading.of_code(reading.code)
    assert (type(again), again.families) == (ValueReading, reading.families)
    assert reading.code != Reading(reading.families).code
    assert isinstance(again.read([("JMSXGroupID", b"a")], b'{"uow-seq": 1}'), tuple), "an id by alias is an id"
    assert isinstance(again.read((), b'{"uow-id": "a", "uow-seq": 1}'), Marks)
    assert Reading().read((), b'{"uow-id": "a", "uow-seq": 1}') is None
    assert ID == "uow-id"


def test_a_byte_order_mark_is_no_part_of_the_json_but_was_one_at_first_w24() -> None:
    value = b'\xef\xbb\xbf{"uow-id": "a", "uow-seq": 1}'
    assert isinstance(ValueReading().read((), value), Marks)
    assert ValueReading((), 1).read((), value) is None


def test_reading_of_another_version_is_refused_w24() -> None:
    with pytest.raises(DecodeError, match="this worker's is version 2"):
        Reading.of_code(ValueReading().code + 1)


def test_audit_reads_them_as_the_worker_does_w24() -> None:
    policy = policy_of(**VALUE, outcomes=OutcomesPolicy.ALL)
    place = context_of(policy).place(0)
    records = [Arrived(at, 1_000, b"a", j(at + 1, end=at == 1).value, []) for at in range(2)]
    assert {row.fate for row in recompute(place, policy, [records])} == {"delivered"}
