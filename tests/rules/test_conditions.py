"""Texts of conditions and of group keys, and the policy that a row makes (aggregation, 4.2; B-20, B-93 to B-97)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.low_stock import ROWS, RULE
from uow.processor.rules.conditions import (
    epoch_ms,
    group_policy,
    read_age_from,
    read_complete_when,
    read_give_up_when,
    read_order_by,
)
from uow.processor.rules.group_keys import GroupKey
from uow.processor.rules.paths import ExpressionError
from uow.processor.rules.record_view import RecordView
from uow.topics.conditions import (
    Age,
    AllOf,
    AnyOf,
    At,
    Behind,
    ByCommand,
    Bytes,
    ComponentDeadline,
    Condition,
    Count,
    EndFlagWithoutGaps,
    Idle,
    Manifest,
    Not,
    PerSource,
    Predicate,
    Urgent,
)
from uow.topics.policies import DestinationPolicy, ExpirationPolicy, ValueFormat
from uow.topics.rules import ResolvedRow


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("end_flag_without_gaps", EndFlagWithoutGaps()),
        ("count(10)", Count(10)),
        (" bytes( 100 ) ", Bytes(100)),
        ("bytes(100, strict)", Bytes(100, strict=True)),
        ("per_source", PerSource()),
        ("manifest", Manifest()),
        ("manifest(2)", Manifest(2)),
        ("manifest(2 of 3)", Manifest(2, 3)),
        ("command", ByCommand()),
        ("predicate(sum(quantity) >= 500)", Predicate("sum(quantity) >= 500")),
        ("predicate(sum(header('a)(')) > 1)", Predicate("sum(header('a)(')) > 1")),
        ("urgent(priority == 'high')", Urgent("priority == 'high'")),
        ("any(count(9), urgent(p in [1, 2], alone))", AnyOf((Count(9), Urgent("p in [1, 2]", alone=True)))),
        ("any(count(2), all(command, not(count(9))))", AnyOf((Count(2), AllOf((ByCommand(), Not(Count(9))))))),
        ("all(count(3), age(1000))", AllOf((Count(3), Age(1000)))),
    ],
)
def test_a_text_is_a_condition_that_completes(text: str, expected: Condition) -> None:
    assert read_complete_when(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age(5)", Age(5)),
        ("idle(7)", Idle(7)),
        ("component_deadline", ComponentDeadline()),
        ("at(17:00, Europe/Berlin, mon-fri, 2026-12-25)", At("17:00, Europe/Berlin, mon-fri, 2026-12-25")),
        ("any(behind(50), age(9))", AnyOf((Behind(50), Age(9)))),
        ("all(age(60000), not(count(3)))", AllOf((Age(60_000), Not(Count(3))))),
    ],
)
def test_a_text_is_a_condition_that_gives_up(text: str, expected: Condition) -> None:
    assert read_give_up_when(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "count",
        "count()",
        "count(0)",
        "count(-1)",
        "count(1.5)",
        "count(9" + "9" * 20 + ")",
        "count(2",
        "count(2))",
        "count(2) count(3)",
        "any()",
        "any(count(2),)",
        "not(count(1), count(2))",
        "bytes(1, lax)",
        "count(1, strict)",
        "predicate()",
        "predicate(quantity > 1)",
        "COUNT(1)",
        "age(5)",
        "any(age(5), idle(6))",
        "eval(1)",
        "per_source(1)",
        "not(" * 40 + "count(1)" + ")" * 40,
        "any(" * 600,
        "count(\u0661)",
        "a" * 600,
        "count(2) || count(3)",
        "urgent()",
        "urgent(sum(quantity) > 5)",
        "urgent(a == 1, soon)",
        "all(count(2), urgent(a == 1, alone))",
        "not(urgent(a == 1, alone))",
        "all(count(2), at(17:00, UTC))",
        "any(count(2), behind(50))",
    ],
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        read_complete_when(text)


@pytest.mark.parametrize(
    "text",
    [
        "at(17:00)",
        "behind(0)",
        "behind(101)",
        "behind",
        "any(age(5), urgent(a == 1, alone))",
        f"any({', '.join(['at(17:00, UTC)'] * 5)})",
    ],
)
def test_another_limit_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        read_give_up_when(text)


@pytest.mark.parametrize("text", ["count(2)", "command", "not(count(2))"])
def test_giving_up_needs_time(text: str) -> None:
    with pytest.raises(ExpressionError):
        read_give_up_when(text)


def test_an_event_time_is_read_in_a_component_or_refused() -> None:
    assert read_age_from("arrival") is None
    moment = read_age_from("event:order.at")
    assert moment is not None
    assert moment((), b'{"order":{"at":1700000000000}}') == 1_700_000_000_000
    for value in (b"", b'{"order":{"at":-1}}', b'{"order":{"at":"noon"}}', b'{"order":{"at":1e99}}'):
        assert moment((), value) == "path:order.at is no epoch time in s, ms, us or ns"


@given(st.integers(100_000_001, 9_999_999_999))
def test_an_event_time_is_in_the_unit_that_it_is_b43(seconds: int) -> None:
    """Seconds, milliseconds, microseconds (Debezium's `ts_us`) and nanoseconds of the years 1973 to 2286 tell themselves apart."""
    assert [epoch_ms(str(seconds * 10**digits)) for digits in (0, 3, 6, 9)] == [seconds * 1000] * 4
    assert (
        epoch_ms(f"{seconds}123456789")
        == epoch_ms(f"{seconds}123456")
        == epoch_ms(f"{seconds}123")
        == seconds * 1000 + 123
    )


def test_numbers_of_an_order_are_compared_to_the_last_digit_b53() -> None:
    rank = read_order_by("field:n")
    assert rank is not None
    values = [b'{"n":9007199254740993}', b'{"n":9007199254740992}', b'{"n":0.30000000000000000001}', b'{"n":0.3}']
    assert sorted(values, key=lambda value: rank((), value)) == [values[i] for i in (3, 2, 1, 0)]


def test_components_are_ranked_by_a_field_numbers_first() -> None:
    assert read_order_by("arrival") is None
    rank = read_order_by("field:n")
    assert rank is not None
    values = [b'{"n":"b"}', b"{}", b'{"n":10}', b'{"n":"a"}', b'{"n":9}', b"\xff"]
    assert sorted(values, key=lambda value: rank((), value)) == [values[i] for i in (4, 2, 3, 0, 1, 5)]


@pytest.mark.parametrize("text", ["", "now", "event:", "field:x", "event:$..x"])
def test_another_moment_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        read_age_from(text)


def test_columns_and_further_conditions_of_a_row_are_joined_by_any() -> None:
    destination = DestinationPolicy(value_format=ValueFormat.JSON, max_components=77)
    more = replace(ROWS[0], complete_when="predicate(sum(quantity) >= 500)", give_up_when="idle(9)", complete_bytes=50)
    policy = group_policy(ResolvedRow(replace(RULE, order_by="field:n"), more), destination)
    assert policy.complete_when == AnyOf((Count(10), Bytes(50), Predicate("sum(quantity) >= 500")))
    assert policy.give_up_when == AnyOf((Age(30_000), Idle(9), ComponentDeadline()))
    assert [text for text, _ in policy.measures] == ["predicate(sum(quantity) >= 500)"]
    assert policy.rank is not None
    assert (policy.rule, policy.target_topic, policy.max_components) == ("low-stock/France@1", "orders.france", 77)
    assert (policy.value_format, policy.expiration_policy) == (ValueFormat.XML, ExpirationPolicy.DELIVER_PARTIAL)


# -- group keys

RECORD = RecordView(
    b"k",
    b'{"cust":"111","file":"orders_a_111.xml","d":"x/y","blank":"  ","none":""}',
    [("uow-destination", b"France")],
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("header:uow-destination", "France"),
        ("key", "k"),
        ("path:cust", "111"),
        ("path:file pattern:orders_*.xml", "a_111"),
        ("path:file pattern:*", "orders_a_111.xml"),
        ("path:file pattern:invoice_*.xml", None),
        ("path:cust pattern:11*11", None),
        ("path:file pattern:*_**", "orders"),
        ("path:file pattern:orders_*_**", "a"),
        ("path:file pattern:*:**", None),
        ("path:cust pattern:11*1**", ""),
        ("constant:all of it", "all of it"),
        ("header:uow-destination + path:cust", "France/111"),
        ("path:d + constant:50%", "x%2Fy/50%25"),
        ("path:cust + header:none", None),
        ("path:cust + path:blank", None),
        ("path:none + path:cust", None),
        ("path:cust pattern:11*1** + path:cust", None),
        ("request", None),
    ],
)
def test_a_group_key_gives_the_routing_name(text: str, expected: str | None) -> None:
    assert GroupKey(text).name(RECORD) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "header:",
        "constant:",
        "path:$..a",
        "path:file pattern:none",
        "path:file pattern:a***",
        "path:file pattern:x**",
        "path:file pattern:*_*",
        "request + key",
        "key + ",
        "a" * 600,
    ],
)
def test_another_group_key_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        GroupKey(text)
