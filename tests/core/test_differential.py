"""The fast path and the decision table are one: the same stream, in bulk and row by row, in one poll or cut anywhere, comes to the same.

What is compared: open groups, memory of closed ones, clock, position, counts, held bytes, and everything put out, byte for byte.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.rule_script import Table
from tests.core.script import T0, policy_of
from tests.core.streams import (
    PARTITIONS,
    TOPICS,
    TP,
    Event,
    World,
    call,
    draw_policy,
    draw_stream,
    new_task,
    polls,
    state_of,
)
from tests.fake_record import FakeRecord
from uow.processor.core.layout import Layout
from uow.processor.core.partition import Partition
from uow.schemas.codec import decode_as
from uow.schemas.records import Unit
from uow.topics.grouping import GroupPolicy
from uow.topics.grouping import policy_of as row_policy
from uow.topics.partitioner import partition_for
from uow.topics.policies import DestinationPolicy, Shape
from uow.topics.rules import Cardinality, LateJoin, Release, ResolvedRow, Row, Rule


def lived(task: Any, calls: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    world = World()
    for one in calls:
        world.add(call(task, one))
    return state_of(task), world.seen(), task.counts


def assert_one_rule(rnd: Random, length: int, ids: int, longest: int, is_routed: bool = False) -> None:
    policy = draw_policy(rnd)
    events = draw_stream(rnd, length, ids)
    more: dict[str, Any] = {}
    if is_routed:
        policy = replace(policy, routes=(), shape=Shape.ENVELOPE)
        events, more = route(rnd, events), {"rules": Table(*draw_rows(rnd, policy))}
    in_bulk = lived(new_task(policy, **more), polls(rnd, events, 1 << 30))
    for fast_path, cut in ((False, 1 << 30), (True, longest), (False, longest), (True, 1)):
        state, seen, counts = lived(new_task(policy, fast_path=fast_path, **more), polls(rnd, events, cut))
        for part, value in seen.items():
            assert value == in_bulk[1][part], (part, fast_path, cut, policy)
        for part, value in state.items():
            if part == "groups":
                value, expected = (
                    {k: v[:-1] for k, v in value.items()},
                    {k: v[:-1] for k, v in in_bulk[0][part].items()},
                )
                assert value == expected, (part, fast_path, cut, policy)
            else:
                assert value == in_bulk[0][part], (part, fast_path, cut, policy)
        assert counts == in_bulk[2], (fast_path, cut, policy)


ROWS = ("UK", "France", "Spain", "Italy", "Malta")


def draw_rows(rnd: Random, policy: DestinationPolicy) -> list[GroupPolicy]:
    """Rows of which most count, two versions of each; of some rules more is asked."""
    found = []
    for name in ROWS:
        for version in (1, 2):
            rule = Rule(
                f"rule-{name}",
                version,
                "D",
                release=rnd.choice([Release.AUTO, Release.AUTO, Release.AUTO, Release.HOLD_FIRST]),
                cardinality=rnd.choice([Cardinality.ONE, Cardinality.ONE, Cardinality.ONE, Cardinality.MANY]),
                max_open_groups=rnd.choice([None, None, None, 1]),
            )
            own = Row(
                rule.rule_id,
                name,
                version,
                complete_count=rnd.choice([1, 2, 3, 5]),
                complete_bytes=rnd.choice([None, None, None, 100]),
                age_ms=rnd.choice([None, 30, 100]),
                idle_ms=rnd.choice([None, None, 20]),
                late_join=rnd.choice([LateJoin.STRICT, LateJoin.STRICT, LateJoin.LENIENT]),
            )
            found.append(row_policy(ResolvedRow(rule, own), policy))
    return found


def route(rnd: Random, events: list[Event]) -> list[Event]:
    """The stream with components of a router in place of most records, plain ones and odd ones."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, FakeRecord) and rnd.random() < 0.85:
            found.append(
                replace(event, headers_=_routed(rnd, event), value_=rnd.choice([b"x", b"", None, b"long" * 30]))
            )
        else:
            found.append(event)
    return found


def _routed(rnd: Random, record: FakeRecord) -> list[tuple[str, bytes | None]]:
    name, version = rnd.choice(ROWS), rnd.choice([1, 1, 1, 2])
    ids = [f"{name}/{number}" for number in range(20)]
    key = rnd.choice([each for each in ids if partition_for(each.encode(), PARTITIONS) == TP.partition][:3])
    offset = record.offset() if rnd.random() < 0.9 else record.offset() - rnd.randrange(1, 4)
    headers: list[tuple[str, bytes | None]] = [
        ("uow-id", (ids[0] if rnd.random() < 0.05 else key).encode()),
        ("uow-rule", f"rule-{name}/{name}@{version}".encode()),
        ("uow-input", b"in/0/%d" % max(0, offset)),
        ("uow-arrived-at", b"%d" % (record.timestamp()[1] - rnd.choice([0, 0, 0, 1, 40, 120, -5]))),
    ]
    odd = rnd.random()
    if odd < 0.25:
        headers.append(rnd.choice(_ODD))
    elif odd < 0.3:
        del headers[rnd.randrange(len(headers))]
    elif odd < 0.4:
        headers.append(("uow-deliver-at", b"%d" % (record.timestamp()[1] + 60)))
    elif odd < 0.5:
        headers.insert(0, ("user", rnd.choice([b"u", None])))
    return headers


_ODD: tuple[tuple[str, bytes | None], ...] = (
    ("uow-seq", b"3"),
    ("uow-end", b"true"),
    ("uow-delay-ms", b"10"),
    ("uow-component-id", b"mine"),
    ("uow-input", b"in/0/7"),
    ("uow-arrived-at", b"soon"),
    ("uow-expires-at", b"1700000000050"),
    ("uow-destination", b"UK"),
    ("uow-correlation-id", b"said"),
    ("uow-rule", b"rule-UK/UK@1"),
)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(1, 5))
def test_routed_rows_in_bulk_and_one_by_one_agree_b30_b31(seed: int, length: int, longest: int) -> None:
    assert_one_rule(Random(seed), length, 3, longest, is_routed=True)


@pytest.mark.parametrize("seed", range(2))
def test_routed_rows_agree_on_long_streams_b30_b31(seed: int) -> None:
    assert_one_rule(Random(seed), 400, 3, 50, is_routed=True)


def test_most_plain_components_of_a_router_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of()
    rows = [row_policy(ResolvedRow(Rule("rule-UK", 1, "D"), Row("rule-UK", "UK", 1, complete_count=10)), policy)]
    task, odd = new_task(policy, rules=Table(*rows)), []
    monkeypatch.setattr(Partition, "on_record", lambda *given: odd.append(given))
    key = next(f"UK/{number}" for number in range(9) if partition_for(b"UK/%d" % number, PARTITIONS) == TP.partition)
    headers = [("uow-id", key.encode()), ("uow-rule", b"rule-UK/UK@1")]
    task.process([FakeRecord(n, [*headers, ("uow-input", b"in/0/%d" % n)], b"x", None, T0, TP) for n in range(25)])
    assert odd == []
    assert (task.counts.delivered, task.counts.held) == (20, 25)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(1, 5))
def test_bulk_and_row_by_row_agree_on_short_streams_w38_w216(seed: int, length: int, ids: int) -> None:
    assert_one_rule(Random(seed), length, ids, 8)


@pytest.mark.parametrize("seed", range(12))
def test_bulk_and_row_by_row_agree_on_long_streams_w38_w216(seed: int) -> None:
    rnd = Random(seed)
    assert_one_rule(rnd, 400, rnd.choice([3, 12, 60, 400]), 50)


def unit_stream(rnd: Random, *, says_false: bool) -> list[FakeRecord]:
    """Components of twenty units, shuffled, some of them twice; `uow-end` is absent on all but the last ones, or false there."""
    groups = [
        name for name in (b"group-%d" % each for each in range(200)) if partition_for(name, PARTITIONS) == TP.partition
    ]
    sent = [(group, seq) for group in groups[:20] for seq in range(1, 6)]
    sent += rnd.choices(sent, k=10)
    rnd.shuffle(sent)
    records = []
    for offset, (group, seq) in enumerate(sent):
        headers: list[tuple[str, bytes | None]] = [("uow-id", group), ("uow-seq", b"%d" % seq)]
        if seq == 5 or says_false:
            headers.append(("uow-end", b"true" if seq == 5 else b"false"))
        records.append(FakeRecord(offset, headers, b"value %d" % offset, group, T0 + offset, TP))
    return records


@pytest.mark.parametrize("says_false", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_both_ways_to_say_where_a_unit_ends_agree_in_bulk_and_one_by_one(seed: int, says_false: bool) -> None:
    records, policy = unit_stream(Random(seed), says_false=says_false), policy_of()
    bulk = lived(new_task(policy), [records])
    assert (bulk[2].held, bulk[2].delivered) == (100, 100)
    for fast_path, cut in ((True, 1), (True, 7), (False, len(records))):
        calls = [records[at : at + cut] for at in range(0, len(records), cut)]
        assert lived(new_task(policy, fast_path=fast_path), calls)[1:] == bulk[1:], (fast_path, cut)


@pytest.mark.parametrize("seed", range(3))
def test_an_absent_end_mark_and_false_make_the_same_units_of_the_same_headers(seed: int) -> None:
    made = []
    for says_false in (False, True):
        plan = call(new_task(policy_of()), unit_stream(Random(seed), says_false=says_false))
        assert plan is not None
        units = [output for output in plan.outputs if output.topic == TOPICS.units]
        assert len(units) == 20
        bodies = [decode_as(Unit, output.value or b"") for output in units]
        for unit in bodies if not says_false else ():
            ends = [[value for name, value in part.headers if name == "uow-end"] for part in unit.components]
            assert ends == [[], [], [], [], [b"true"]]
        same = [
            replace(
                unit,
                bytes=0,  # of the components, headers included
                components=tuple(
                    replace(part, headers=tuple([pair for pair in part.headers if pair != ("uow-end", b"false")]))
                    for part in unit.components
                ),
            )
            for unit in bodies
        ]
        made.append(([(output.key, output.headers) for output in units], same))
    assert made[0] == made[1]


def test_records_with_and_without_an_end_mark_are_all_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    monkeypatch.setattr(Layout, "is_plain", lambda *given: looks.append(given))
    monkeypatch.setattr(Partition, "on_record", lambda *given: looks.append(given))
    headers: list[list[tuple[str, bytes | None]]] = [
        [("uow-id", b"group-12"), ("uow-seq", b"%d" % seq), *([("uow-end", b"true")] if seq == 5 else [])]
        for seq in range(1, 6)
    ]
    task = new_task(policy_of())
    task.process([FakeRecord(offset, each, b"v", None, T0, TP) for offset, each in enumerate(headers)])
    assert task.counts.delivered == 5
    assert looks == []


@pytest.mark.parametrize("component_ids", [("é", None), (None, "é"), (None, None), ("é", "m2"), ("", None)])
def test_component_ids_that_are_no_ascii_or_null_are_read_in_bulk_as_one_by_one(
    component_ids: tuple[str | None, ...],
) -> None:
    records = [
        FakeRecord(
            offset,
            [("uow-id", b"group-12"), ("uow-seq", b"%d" % (offset + 1)), ("uow-component-id", None if each is None else each.encode())],
            b"value", b"group-12", T0 + offset, TP,
        )
        for offset, each in enumerate(component_ids)
    ]  # fmt: skip
    bulk = lived(new_task(policy_of()), [records])
    assert bulk[2].held == len(records)
    assert lived(new_task(policy_of(), fast_path=False), [[each] for each in records])[1:] == bulk[1:]
