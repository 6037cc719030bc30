"""Everything that makes a version invalid, each with its complaint, all at once (B-15)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_record import FakeRecord
from tests.rules.low_stock import ROWS, RULE, TABLES
from uow.processor.rules import checks, trial
from uow.processor.rules.checks import complaints_about
from uow.processor.rules.expressions import Expression
from uow.processor.rules.record_view import RecordView
from uow.processor.rules.routing import RecordRouting, RouteTarget, RuleRouting
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy, HandlingPolicy, LatePolicy, Routing, Shape
from uow.topics.record_size import RecordLimit
from uow.topics.rules import (
    BelowMin,
    Cardinality,
    DefaultGroup,
    Delay,
    DeliverOrder,
    KeyCase,
    Numbering,
    OnNoKey,
    Parameter,
    Release,
    Rule,
    Source,
)

FORMS = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
DESTINATIONS = {
    "supply": FORMS,
    "plain": DestinationPolicy(),
    "other": FORMS,
    "paths": replace(FORMS, routing=Routing.PATH),
}


TARGET = RouteTarget(DestinationTopics("shop", "supply"), FORMS, RecordLimit())


@pytest.fixture(autouse=True, scope="module")
def _time_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "Trials", partial(trial.Trials, math.inf))
        yield


def complaints(tables: RuleTables) -> list[str]:
    return [each.setting for each in complaints_about(RuleSet(tables), DESTINATIONS, "shop", ["upper"])]


def test_the_fixture_is_valid() -> None:
    assert complaints(TABLES) == []


NO_LIMIT: dict[str, Any] = {"complete_count": None, "age_ms": None}


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        (NO_LIMIT, "complete_count"),
        ({"complete_count": 0}, "complete_count"),
        ({"complete_count": 2**31}, "complete_count"),
        ({"age_ms": 0}, "age_ms"),
        ({"idle_ms": -1}, "idle_ms"),
        ({"complete_bytes": 0}, "complete_bytes"),
        ({"min_count": 11}, "min_count"),
        ({"complete_when": "predicate(quantity > 1)"}, "complete_when"),
        ({"give_up_when": "count(1)"}, "give_up_when"),
        ({"age_from": "event:$..x"}, "age_from"),
        ({"age_ms": None, "age_from": "event:path:sent"}, "age_from"),
        ({"age_from": "manifest"}, "age_from"),
        ({"complete_when": "any(count(3), manifest(2))"}, "complete_when"),
        ({"complete_when": "manifest(3 of 2)"}, "complete_when"),
        ({"give_up_when": "at(17:00, Europe/Nowhere)"}, "give_up_when"),
        ({"complete_count": None, "give_up_when": "behind(50)"}, "give_up_when"),
        ({"age_ms": None, "give_up_when": "any(behind(50), idle(5))"}, "give_up_when"),
        ({"age_ms": None, "below_min": BelowMin.EXTEND}, "below_min"),
        ({"valid_from_ms": 5, "valid_to_ms": 5}, "valid_to_ms"),
        ({"routing_name": "  "}, "routing_name"),
        ({"routing_name": "é" * 65}, "routing_name"),
        ({"target_topic": "orders france"}, "target_topic"),
        ({"target_topic": ""}, "target_topic"),
        ({"target_topic": "supply.components"}, "target_topic"),
        ({"target_topic": "other.units"}, "target_topic"),
        ({"target_topic": "shop-rules"}, "target_topic"),
        ({"target_topic": "shop-supply-groups-changelog"}, "target_topic"),
    ],
)
def test_a_row_that_cannot_be(changes: dict[str, Any], column: str) -> None:
    row = replace(ROWS[0], **changes)
    found = complaints(replace(TABLES, rows=(row, *ROWS[1:])))
    assert found == [f"rule_row/low-stock/{row.routing_name[:64]}.{column}"]


@pytest.mark.parametrize(
    "changes",
    [
        {"complete_bytes": 100},
        {"complete_when": "command"},
        {"give_up_when": "idle(5)"},
        {"idle_ms": 5},
        {"give_up_when": "at(17:00, Europe/Berlin)"},
        {"complete_count": 9, "give_up_when": "any(behind(50), at(17:00, UTC))"},
        {"complete_when": "urgent(priority > 5, alone)"},
        {"target_topic": "supply.units"},
    ],
)
def test_any_condition_that_closes_is_enough_b35(changes: dict[str, Any]) -> None:
    limits = {} if "target_topic" in changes else NO_LIMIT
    assert complaints(replace(TABLES, rows=(replace(ROWS[0], **(limits | changes)), *ROWS[1:]))) == []


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"rule_id": "low/stock"}, "rule_id"),
        ({"destination": "nowhere"}, "destination"),
        ({"destination": "plain"}, "destination"),
        ({"accept": "quantity >"}, "accept"),
        ({"transform": "lower"}, "transform"),
        ({"group_key": "nothing"}, "group_key"),
        ({"deliver_order": DeliverOrder.FIRST_ARRIVAL, "release": Release.HOLD_ALL}, "release"),
        ({"destination": "paths"}, "destination"),
        ({"delay_item": "path:$..x"}, "delay_item"),
        ({"order_by": "field:"}, "order_by"),
        ({"release_every_ms": 999}, "release_every_ms"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"max_open_groups": 0}, "max_open_groups"),
        ({"priority": 2**31}, "priority"),
        ({"name_template": "orders"}, "name_template"),
        ({"late_policy": LatePolicy.AMEND}, "late_policy"),
    ],
)
def test_a_rule_that_cannot_be(changes: dict[str, Any], column: str) -> None:
    rule = replace(RULE, **changes)
    rows = tuple(replace(row, rule_id=rule.rule_id) for row in ROWS)
    assert complaints(replace(TABLES, rules=(rule,), rows=rows)) == [f"rule/{rule.rule_id}.{column}"]


def test_a_rule_needs_a_row_and_a_numbered_one_no_condition() -> None:
    assert complaints(replace(TABLES, rows=())) == ["rule/low-stock.row"]
    given = replace(RULE, sequence=Numbering.GIVEN)
    assert complaints(replace(TABLES, rules=(given,), rows=(replace(ROWS[0], **NO_LIMIT),))) == []


def test_whoever_leaves_alone_has_no_number_of_its_sender_b207() -> None:
    given = replace(RULE, sequence=Numbering.GIVEN)
    row = replace(ROWS[0], complete_when="any(count(3), urgent(priority > 5, alone))")
    assert complaints(replace(TABLES, rules=(given,), rows=(row,))) == ["rule_row/low-stock/France.complete_when"]


def test_a_rule_with_sources_says_what_becomes_of_records_without_a_name_b93_b97() -> None:
    source = Source("low-stock", "invoice", 1)
    limitless = replace(TABLES, sources=(source,), rows=(replace(ROWS[0], **NO_LIMIT),))
    assert complaints(limitless) == [
        "rule/low-stock.on_no_key",
        "rule/low-stock.default_group",
        "rule_source/low-stock/invoice.wait_ms",
    ]
    rule = replace(RULE, on_no_key=OnNoKey.REJECT, default_group=DefaultGroup.PER_NAME)
    wrong = replace(source, quantity=-1, correlation_path="x", correlation_pattern="y")
    assert complaints(replace(limitless, rules=(rule,), sources=(wrong,))) == [
        f"rule_source/low-stock/invoice.{column}" for column in ("quantity", "correlation_path", "correlation_pattern")
    ]
    assert complaints(replace(limitless, rules=(rule,), sources=(replace(source, quantity=1),))) == []


@pytest.mark.parametrize(
    ("path", "column"),
    [("path:cust", None), ("header:cust", "rule/low-stock.on_no_key"), (None, "rule/low-stock.on_no_key")],
)
def test_a_rule_with_sources_needs_no_setting_where_its_default_is_a_good_one_b97(
    path: str | None, column: str | None
) -> None:
    source = Source("low-stock", "invoice", 1, quantity=1, correlation_path=path)
    rule = Rule("low-stock", 1, "supply", group_key="header:cust")
    found = complaints(replace(TABLES, rules=(rule,), rows=(replace(ROWS[0], **NO_LIMIT),), sources=(source,)))
    assert found == [column] * bool(column)


def test_what_is_wrong_across_rows() -> None:
    folded = replace(RULE, key_case=KeyCase.CASEFOLD)
    tables = replace(
        TABLES,
        rules=(folded,),
        rows=(*ROWS, replace(ROWS[0], routing_name="FRANCE", age_ms=None)),
        delays=(Delay("low-stock", "France", "", 1, -1),),
        parameters=(
            Parameter("x", 1, "1"),
            Parameter("reply_hold_ms", 1, "y"),
            Parameter("stranded_after_ms", 1, "60000"),
            Parameter("delivery_attempts", 1, "101"),
        ),
    )
    assert set(complaints(tables)) == {
        "rule_row/low-stock/FRANCE.routing_name",
        "rule_delay/low-stock/France/.delay_ms",
        "rule_delay/low-stock/France/.item",
        "rule_parameter/x.name",
        "rule_parameter/reply_hold_ms.value",
        "rule_parameter/stranded_after_ms.value",
        "rule_parameter/delivery_attempts.value",
    }
    assert complaints(
        replace(TABLES, rules=(replace(RULE, delay_item=None),), delays=(Delay("low-stock", "*", "a", 1, 1),))
    )


def test_a_row_older_than_its_rule_needs_the_rule_of_then() -> None:
    assert complaints(replace(TABLES, rules=(replace(RULE, version=2),), rows=ROWS[:1])) == [
        "rule_row/low-stock/France.version"
    ]


TRIPS = replace(RULE, group_key="request", sequence=Numbering.GIVEN)


def gathering(rule: Any = TRIPS, parameters: tuple[Parameter, ...] = (), **row: Any) -> RuleTables:
    given = {"complete_when": "any(manifest(2 of 3), count(9))", "complete_count": None, "min_count": 1} | row
    return replace(TABLES, rules=(rule,), rows=tuple(replace(each, **given) for each in ROWS), parameters=parameters)


def test_a_rule_that_gathers_replies_is_valid_b77() -> None:
    topics = Parameter("reply_topics", 1, "trips.done, others")
    assert complaints(gathering(age_from="manifest", parameters=(topics,))) == []
    assert complaints(gathering(replace(TRIPS, group_key="request:path:call.id"))) == []


@pytest.mark.parametrize(
    ("rule", "row", "column"),
    [
        ({"sequence": Numbering.ASSIGNED}, {}, "sequence"),
        ({"cardinality": Cardinality.MANY}, {}, "cardinality"),
        ({"on_no_key": OnNoKey.UNNAMED}, {}, "on_no_key"),
        ({"group_key": "key"}, {}, "complete_when"),
        ({"group_key": "request:"}, {}, "group_key"),
        ({}, {"complete_when": "count(3)"}, "complete_when"),
        ({}, {"shape": Shape.CONSECUTIVE}, "shape"),
    ],
)
def test_a_rule_gathers_replies_wholly_or_not_at_all_b77(rule: Any, row: Any, column: str) -> None:
    found = complaints(gathering(replace(TRIPS, **rule), **row))
    assert found
    assert all(each.endswith(column) for each in found)


@pytest.mark.parametrize("value", ["a b", "x.*", "a,,b", "supply.commands"])
def test_reply_topics_are_names_of_topics_b91(value: str) -> None:
    assert complaints(gathering(parameters=(Parameter("reply_topics", 1, value),)))


@pytest.mark.parametrize("value", ["a b", "a,,b", "supply.commands", "france", "trips.mine"])
def test_notice_topics_are_names_of_topics_to_which_no_unit_goes_b209(value: str) -> None:
    given = [Parameter("reply_topics", 1, "trips.mine"), Parameter("notice_topics", 1, "hotels.cancelled, flights")]
    rows = {"target_topic": "france"}
    assert complaints(gathering(parameters=tuple(given), **rows)) == []
    given[1] = replace(given[1], value=value)
    assert set(complaints(gathering(parameters=tuple(given), **rows))) == {"rule_parameter/notice_topics.value"}


def test_units_in_order_of_arrival_need_an_age_b118() -> None:
    rule = replace(RULE, deliver_order=DeliverOrder.FIRST_ARRIVAL)
    assert complaints(replace(TABLES, rules=(rule,))) == []
    forever = tuple(replace(each, age_ms=None, complete_count=3) for each in ROWS)
    assert complaints(replace(TABLES, rules=(rule,), rows=forever)) == [f"rule/{RULE.rule_id}.deliver_order"]


# -- texts that can be read, and at which a router would fail


@pytest.mark.parametrize(
    "text", ["path:/-a", "path:/a[b='\x01']", "path:/a[b='\ud800']", "path:a[1e2]", "path:/a/-b", "path:$['\\x']"]
)
@pytest.mark.parametrize("column", ["group_key", "accept", "delay_item", "order_by"])
def test_a_path_that_no_record_can_be_asked_for_is_named(text: str, column: str) -> None:
    field = f"field:{text}" if column == "order_by" else text
    delays = () if column != "delay_item" else TABLES.delays
    tables = replace(TABLES, rules=(replace(RULE, **{"delay_item": None, column: field}),), delays=delays)  # type: ignore[arg-type]
    assert f"rule/low-stock.{column}" in complaints(tables)


class Bug(BaseException):
    """As nobody foresaw; of a library in Rust it is no `Exception`."""


@pytest.mark.parametrize(
    ("column", "text"),
    [("group_key", "path:product"), ("accept", "product > 1"), ("accept", "path('/product') == 'x'"), ("delay_item", "path:p"),
     ("order_by", "field:product")],
)  # fmt: skip
def test_whatever_a_text_raises_at_some_record_is_a_complaint(
    column: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RecordView) -> Any:
        raise Bug

    monkeypatch.setattr(trial, "_tried", {})
    for each in ("json", "xml"):
        monkeypatch.setattr(RecordView, each, property(broken))
    rule = replace(RULE, **{"delay_item": None, column: text})  # type: ignore[arg-type]
    assert complaints(replace(TABLES, rules=(rule,))) == [f"rule/low-stock.{column}"]
    row = replace(ROWS[0], complete_when="any(count(3), urgent(product == 'x'))")
    assert f"rule_row/low-stock/{row.routing_name}.complete_when" in complaints(replace(TABLES, rows=(row, *ROWS[1:])))


def test_a_rule_of_good_texts_at_which_the_router_itself_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *given: Any) -> Any:
        raise Bug

    monkeypatch.setattr(RuleRouting, "_choice", broken)
    assert complaints(TABLES) == ["rule/low-stock.group_key"]


def test_a_transform_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise LookupError(f"the transform {name!r} cannot be loaded: ImportError")

    monkeypatch.setattr("uow.processor.rules.checks.transform_named", missing)
    assert complaints(replace(TABLES, rules=(replace(RULE, transform="upper"),))) == ["rule/low-stock.transform"]


def test_texts_of_one_shape_are_tried_once_and_the_one_asked_for_least_lately_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "_tried", tried := {})
    monkeypatch.setattr(trial, "_MOST_TRIED", 3)
    trials, shapes = trial.Trials(), ["{0} == 'x'", "{0}.{0} > {1}", "size({0}) > {1}", "{0} in [{1}]"]
    for number, name in enumerate(("qty", "b", "weight_2")):
        for shape in shapes[:3]:
            trials.failure(Expression, shape.format(name, number))
    assert len(tried) == 3
    trials.failure(Expression, shapes[0].format("again", 7))
    trials.failure(Expression, shapes[3].format("new", 7))
    assert [kind[1] for kind in tried] == ["size(x) > 0", "x == 'x'", "x in [0]"]


@pytest.mark.parametrize(
    ("one", "other"),
    [("a == b", "a > b"), ("size(a)", "double(a)"), ("path:/a", "header:a"), ("path:/-a", "path:/a"), ("key", "request"),
     ("path:a[1]", "path:a[b]"), ("a.startsWith('x')", "a.contains('x')"), ("a == true", "a == b"), ("path:/a div b", "path:/a mod b")],
)  # fmt: skip
def test_texts_of_another_meaning_have_another_shape(one: str, other: str) -> None:
    assert trial._shape(one) != trial._shape(other)


def test_once_the_time_is_over_no_text_is_tried_and_none_is_taken_for_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_tried", tried := {})
    now = 0.0
    trials = trial.Trials(2.0, lambda: now)
    now = 2.1
    assert (trials.failure(Expression, "a == b"), tried) == ("", {})
    rules = RuleSet(TABLES)

    def never(*given: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(RecordRouting, "route", never)
    assert trials.routing_failure(rules.rules[0], rules, TARGET) == ""


_WORDS = (
    "path:", "header:", "key", "constant:x", " + ", " pattern:*", "request", "/", "//", "-a", "a", "@id", "[1]", "[0]", "[@a='x']",
    "[b='\x01']", "text()", "..", "$", "['x']", "(", ")", "'", "\ud800", "\0", "1", "1e5", "&&", "==", "-", "in", "has(", "size(",
    "path('a')", "header('x')", "any(", "all(", "not(", "count(3)", "predicate(", "sum(a)", "urgent(", ", alone", "at(17:00, Europe/Berlin)",
    "event:", "field:", ", ", " > 1",
)  # fmt: skip


@given(
    st.lists(st.sampled_from(_WORDS), min_size=1, max_size=7).map("".join),
    st.sampled_from(["group_key", "accept", "order_by"]),
)
def test_no_text_makes_the_check_raise_and_what_it_accepts_never_fails_in_the_router(text: str, column: str) -> None:
    tables = replace(TABLES, rules=(replace(RULE, **{column: text}),))  # type: ignore[arg-type]
    rows = (replace(ROWS[0], complete_when=text), *ROWS[1:])
    complaints(replace(TABLES, rows=rows))
    if complaints(tables):
        return
    rules = RuleSet(tables)
    routing = RecordRouting([RuleRouting(rules.rules[0], rules, TARGET)])
    for value in (b"", b"<a id='1'>x</a>", b'{"a": [1, {"x": "\\ud800"}]}'):
        record = FakeRecord(0, [], value)
        assert routing.route(record, [("a", b"1")], 0).fault is None
