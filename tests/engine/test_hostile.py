"""Nobody can stop a worker with a record: whatever the headers, key and value are, a plan comes out and every record is accounted for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.script import T0, TOPICS, check_counts, context_of, policy_of, unit_of
from tests.engine.test_memory import traced
from tests.fake_record import INPUT, FakeRecord
from uow.processor.core import columns, layout
from uow.processor.core.columns import ColumnReader
from uow.processor.engine.task import PartitionTask
from uow.schemas import codec
from uow.schemas.component import decode_component
from uow.topics import headers as names
from uow.topics.headers import ALIASES, Reading
from uow.topics.policies import (
    AliasFamily,
    ExpirationPolicy,
    HandlingPolicy,
    LatePolicy,
    ValueFormat,
    ViolationPolicy,
)

OURS = sorted(
    {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    | {alias for family in ALIASES.values() for alias in family}
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
header_names = st.sampled_from(OURS) | texts
numbers = st.sampled_from([b"1", b"2", b"3", b"0", b"-1", b"true", b"false", b"a", b"", b"1700000000000", b"9" * 40])
header_values = st.none() | numbers | st.binary(max_size=40)
odd_headers = st.lists(st.tuples(header_names, header_values), max_size=8)
components = st.builds(
    lambda name, seq, end, rest: [("uow-id", name), ("uow-seq", seq), ("uow-end", end), *rest],
    st.sampled_from([b"a", b"b", "ü\0".encode(), b"\xff"]),
    st.sampled_from([b"1", b"2", b"3", b"2147483647"]),
    st.sampled_from([b"true", b"false"]),
    odd_headers,
)
unreadable = st.just(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
all_headers: st.SearchStrategy[Any] = st.none() | odd_headers | components | components | unreadable
records = st.tuples(
    all_headers, st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20), st.sampled_from([-1, 0, T0])
)
policies = st.builds(
    policy_of,
    handling_policy=st.sampled_from([HandlingPolicy.SINGLE_MESSAGE_DELIVERY] * 4 + [HandlingPolicy.PASS_THROUGH]),
    accept_aliases=st.frozensets(st.sampled_from(list(AliasFamily))),
    value_format=st.sampled_from(list(ValueFormat)),
    incomplete_expiration_ms=st.sampled_from([-1, 1]),
    expiration_policy=st.sampled_from(list(ExpirationPolicy)),
    violation_policy=st.sampled_from(list(ViolationPolicy)),
    late_policy=st.sampled_from(list(LatePolicy)),
    expiration_log_headers=st.just(("uow-id", "uow-type")),
)


def accounted(task: PartitionTask, sent: list[FakeRecord]) -> None:
    """Each record led to exactly one thing, and what was put out can be read (W-216, W-37)."""
    task.read_rules(sent[-1].offset_ + 1, lambda: None)  # one that names a row of a rule waits for it otherwise
    plan = task.process(sent)
    check_counts(task.counts, task.groups)
    assert task.counts.received == len(sent)
    assert task.position == sent[-1].offset_ + 1
    sources = [dict(o.headers)["uow-source"] for o in plan.outputs if o.topic == TOPICS.rejected]
    assert len(set(sources)) == len(sources)
    for output in plan.outputs:
        assert all(isinstance(name, str) and isinstance(value, bytes | None) for name, value in output.headers)
        if output.topic == TOPICS.units and output.headers[1:2] == [("uow-kind", b"unit")] and output.value is not None:
            assert unit_of(output).components
        if output.topic == TOPICS.outcomes:
            codec.decode(output.value or b"")
    for group in task.groups.values():
        for body in group.held.values():
            decode_component(body)
    tick = task.tick(T0 + 10**9)
    assert tick is None or tick.next_offset == task.position
    check_counts(task.counts, task.groups)


@settings(max_examples=80)
@given(st.lists(records, min_size=1, max_size=10), policies)
def test_no_record_gets_an_exception_out_of_a_task_w216(sent: list[Any], policy: Any) -> None:
    task = PartitionTask(INPUT, context_of(policy))
    accounted(
        task,
        [FakeRecord(offset, headers, value, key, at) for offset, (headers, key, value, at) in enumerate(sent)],
    )


@settings(max_examples=40)
@given(st.lists(records, min_size=1, max_size=10))
def test_bytes_of_a_component_survive_whatever_they_are_w95(sent: list[Any]) -> None:
    task = PartitionTask(INPUT, context_of(policy_of()))
    made = [FakeRecord(offset, headers, value, key, at) for offset, (headers, key, value, at) in enumerate(sent)]
    task.process(made)
    for group in task.groups.values():
        for body in group.held.values():
            component = decode_component(body)
            record = made[component.source.offset]
            assert list(component.headers) == record.headers_
            assert (component.key, component.value, component.timestamp) == (record.key_, record.value_, record.at)


def sent_with(headers: Any, value: bytes | None = b"v", key: bytes | None = b"a") -> FakeRecord:
    return FakeRecord(0, headers, value, key)


COMPONENT = [("uow-id", b"a"), ("uow-seq", b"1"), ("uow-end", b"true")]


@pytest.mark.parametrize(
    "headers",
    [
        [*COMPONENT, *(("x", b"%d" % index) for index in range(5000))],
        [*COMPONENT, *((f"made-up-{index}", None) for index in range(5000))],
        [*COMPONENT, *COMPONENT * 1000],
        [("uow-seq", b"%d" % index) for index in range(5000)] + [("uow-id", b"a")],
        [*COMPONENT, ("x", b"y" * 2_000_000)],
        [*COMPONENT, ("x" * 1_000_000, b"y")],
        [("uow-id", b"y" * 2_000_000), ("uow-seq", b"1")],
        [("uow-id", b"a"), ("uow-seq", b"1" * 2_000_000)],
        [("uow-id", b"a"), ("uow-seq", b"0" * 2_000_000 + b"1"), ("uow-end", b"true")],
        [("uow-id", b"a"), ("uow-seq", b"-" + b"9" * 2_000_000)],
        [("uow-id", b"a"), ("uow-seq", b"1"), ("uow-end", b"t" * 2_000_000)],
        [*COMPONENT, ("uow-expires-at", b"1" * 2_000_000)],
        [*COMPONENT, ("uow-count", b"1" * 2_000_000)],
        [*COMPONENT, ("uow-digest", b"sha256:" + b"0" * 2_000_000)],
        [*COMPONENT, ("uow-component-id", b"m" * 2_000_000)],
        [*COMPONENT, ("", b""), ("\0", b"\0"), ("\N{SNOWMAN}", None), ("uow-\n", b"x")],
        [("uow-id", "ü".encode() * 127), ("uow-seq", b"1")],
    ],
    ids=range(17),
)
@pytest.mark.parametrize("value_format", [ValueFormat.AVRO, ValueFormat.JSON])
def test_headers_by_the_thousand_or_the_megabyte_are_one_record_w216(headers: Any, value_format: ValueFormat) -> None:
    policy = policy_of(value_format=value_format)
    accounted(PartitionTask(INPUT, context_of(policy)), [sent_with(headers)])


@pytest.mark.parametrize("value", [None, b"", b"\0", b"x" * 3_000_000])
@pytest.mark.parametrize("key", [None, b"", b"\xff", b"other"])
def test_any_key_and_value_are_fine_w95(value: bytes | None, key: bytes | None) -> None:
    task = PartitionTask(INPUT, context_of(policy_of()))
    (output,) = task.process([sent_with(COMPONENT, value, key)]).outputs
    component = unit_of(output).components[0]
    assert (component.value, component.key) == (value, key)
    assert output.key == b"a"


def test_record_without_a_timestamp_is_encoded_like_any_other() -> None:
    task = PartitionTask(INPUT, context_of(policy_of()))
    record = FakeRecord(0, COMPONENT, b"v", b"a", -1)
    (output,) = task.process([record]).outputs
    assert unit_of(output).components[0].timestamp == -1


def read(reader: ColumnReader, records: list[FakeRecord]) -> columns.Columns:
    """In one portion."""
    (found,) = reader.read(records)
    return found


@pytest.mark.parametrize(
    "heads",
    [
        lambda index: [f"x{index}"],
        lambda index: [""] * index,
        lambda index: ["a"] * 500 + [str(index)],
        lambda index: [f"{index}-{name}" for name in range(300)],
        lambda index: ["x" * 60_000 + str(index)],
    ],
    ids=["one", "empty", "short", "many", "long"],
)
def test_layouts_made_up_per_record_do_not_fill_the_memory(heads: Any) -> None:
    """Tables by header names are bounded by what they take, names without a letter included, and counted."""
    reader = ColumnReader("D.components", 0, Reading())
    made = [sent_with([*COMPONENT, *((name, b"") for name in heads(index))]) for index in range(400)]
    with traced() as found:
        for sent in made:
            read(reader, [sent])
    assert found[0] < 400_000
    assert found[0] - 20_000 < 1.5 * reader.memory_bytes, "counted"
    assert list(read(reader, [sent_with(COMPONENT)]).ids) == [b"a"]


def test_component_with_more_headers_than_the_destination_takes_is_refused() -> None:
    """Plain traffic passes, whatever it carries."""
    policy = policy_of(max_headers=10, max_header_name_bytes=256)
    task = PartitionTask(INPUT, context_of(policy))
    most, many = [*COMPONENT, *[("x", b"")] * 7], [*COMPONENT, *[("x", b"")] * 8]
    long, longest = [*COMPONENT, ("ü" * 120, b"")], [*COMPONENT, ("x" * (256 - 21), b"")]
    ids = [b"most", b"many", b"long", b"longest"]
    sent = [[("uow-id", name), *rest[1:]] for name, rest in zip(ids, (most, many, long, longest), strict=True)]
    sent.append([("x" * 1_000, b"")] * 20)
    plan = task.process([FakeRecord(offset, headers, b"v", b"k") for offset, headers in enumerate(sent)])
    refused = [dict(each.headers) for each in plan.outputs if each.topic == TOPICS.rejected]
    assert [(each["uow-id"], each["uow-error-class"], each["uow-error-case"]) for each in refused] == [
        (b"many", b"DecodeError", b"headers"),
        (b"long", b"DecodeError", b"headers"),
    ]
    assert b"11 headers; most are 10, with 256 bytes of names" in refused[0]["uow-error-text"]  # type: ignore[operator]
    assert [each.key for each in plan.outputs if each.topic == TOPICS.units] == [b"most", b"longest", b"k"]
    check_counts(task.counts, task.groups)


def test_end_component_that_waits_costs_its_bytes_and_no_object_for_each_header() -> None:
    """Its unit takes them over all the same."""
    user = [(f"h{index % 7}", b"%d" % index) for index in range(900)]
    waiting = [[("uow-id", b"g%d" % index), ("uow-seq", b"2"), ("uow-end", b"true"), *user] for index in range(100)]
    task = PartitionTask(INPUT, context_of(policy_of()))
    with traced() as found:
        for offset, headers in enumerate(waiting):
            task.process([FakeRecord(offset, headers, b"v", b"k")])
    assert found[0] < 1.5 * task.memory_bytes
    first = [("uow-id", b"g5"), ("uow-seq", b"1")]
    (output,) = [
        each for each in task.process([FakeRecord(100, first, b"v", b"k")]).outputs if each.topic == TOPICS.units
    ]
    assert [pair for pair in output.headers if pair[0].startswith("h")] == user


def test_records_with_thousands_of_headers_are_taken_in_portions_and_plans_of_bounded_size() -> None:
    """Five bytes each on the wire, and a hundred and fifty until the plan is written."""
    task = PartitionTask(INPUT, context_of(policy_of()))
    headers = [("uow-id", b"a"), ("uow-seq", b"1"), *[("x", b"")] * 20_000]
    sent = [FakeRecord(offset, headers, b"v", b"k") for offset in range(128)]
    assert [len(each.records) for each in task.partition.reader.read(sent)] == [1] * 128
    plans = []
    while task.position < 128:
        plans.append(task.process(sent[task.position :]))
    assert [plan.is_cut for plan in plans] == [True] * (len(plans) - 1) + [False]
    assert 20 < len(plans) < 40
    assert sum(len(plan.outputs) for plan in plans) == 128
    check_counts(task.counts, task.groups)


def test_components_with_hundreds_of_headers_make_plans_of_bounded_size_though_they_are_held() -> None:
    """5,000 of 900 each were half a minute's work, and a worker's pages did not answer meanwhile."""
    task = PartitionTask(INPUT, context_of(policy_of()))
    more: Any = [("x", b"")] * 900
    sent = [
        FakeRecord(at, [("uow-id", b"%d" % at), ("uow-seq", b"1"), *more[: 900 if at % 2 else 0]], b"v", b"k")
        for at in range(400)
    ]
    plans = []
    while task.position < 400:
        plans.append(task.process(sent[task.position :]))
    assert [plan.is_cut for plan in plans] == [True, False]
    assert len(task.groups) == 400
    check_counts(task.counts, task.groups)


def test_huge_headers_are_not_kept_for_look_up() -> None:
    reader = ColumnReader("D.components", 0, Reading())
    layout._MARKS.clear()
    layout._NUMBERS.clear()
    for index in range(20):
        read(reader, [sent_with([("uow-id", b"a"), ("uow-seq", b"1"), ("uow-end", b"%d" % index * 100_000)])])
        read(reader, [sent_with([("uow-id", b"a"), ("uow-seq", b"%d" % index * 100_000), ("uow-end", b"true")])])
        read(reader, [sent_with([("uow-id", b"a"), ("uow-seq", b"%d" % index * 100_000)])])
        read(reader, [sent_with([*COMPONENT, (f"{index}" * 100_000, b"")])])
    kept = sum(len(part or b"") for raws in layout._MARKS for part in raws)
    kept += sum(len(raw or b"") for raw in layout._NUMBERS)
    kept += sum(len(name) for heads in reader._layouts for name in heads)
    assert kept < 10_000
