"""Whatever a record makes the code do concerns that record alone: out of the router comes a routed record or a refusal, and nothing else (B-06)."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fake_record import T0, FakeRecord
from tests.rules.test_routing import LOW_STOCK, STOCK, TRIPS, gathering, route, router, said
from uow.processor.rules.expressions import MAX_LEVELS, MAX_VALUES, Expression, compile_predicate
from uow.processor.rules.paths import Place
from uow.processor.rules.record_view import LIMIT_BYTES, RecordView
from uow.processor.rules.routed_records import ManyRecords, RoutedRecords
from uow.processor.rules.routing import Fate, RecordRouting, RouteTarget, routings_of
from uow.processor.rules.rule_file import read_rules
from uow.processor.rules.rule_set import RuleSet
from uow.topics.catalogue import DestinationTopics
from uow.topics.manifests import RequestId
from uow.topics.policies import AliasFamily, DestinationPolicy, HandlingPolicy, ValueFormat
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import DefaultGroup, KeyCase, OnNoKey, Source

EXAMPLES = Path(__file__).parents[2] / "examples"
BY_QUANTITY = replace(LOW_STOCK, accept="quantity > 0")


def nested(depth: int, *, of: bytes = b"[]") -> bytes:
    return of[:1] * depth + of[1:] * depth


def told(value: bytes, routing: RecordRouting | None = None) -> tuple[Any, Any, bytes]:
    """Class, case and text of a refusal, and nothing where there is none."""
    found = route(routing or router(BY_QUANTITY), FakeRecord(7, [("uow-destination", b"UK")], value, tp=STOCK))
    headers = said(found)
    assert found.fate is not Fate.ROUTED or "uow-error-class" not in headers
    return headers.get("uow-error-class"), headers.get("uow-error-case"), headers.get("uow-error-text") or b""


# -- bounds that are foreseen


@pytest.mark.parametrize("depth", [MAX_LEVELS + 1, 600, 100_000])
def test_a_field_nested_too_deep_for_an_expression_is_refused(depth: int) -> None:
    kind, case, text = told(b'{"quantity": %s}' % nested(depth))
    assert (kind, case) == (b"DecodeError", b"json")
    assert b"levels" in text or b"nested too deep" in text


def test_a_field_with_too_many_values_for_an_expression_is_refused() -> None:
    kind, case, text = told(b'{"quantity": %s}' % json.dumps([1] * (MAX_VALUES + 1)).encode())
    assert (kind, case) == (b"DecodeError", b"json")
    assert b"10000 values" in text


def test_a_document_over_the_limit_is_refused_and_one_of_its_size_is_read() -> None:
    def of(size: int) -> bytes:
        head = b'{"quantity": 1, "pad": "'
        return head + b"x" * (size - len(head) - 2) + b'"}'

    assert Expression("quantity == 1").boolean(RecordView(None, of(LIMIT_BYTES)))
    kind, case, text = told(of(LIMIT_BYTES + 1))
    assert (kind, case) == (b"DecodeError", b"json")
    assert b"4194304 are allowed" in text


XML_TOO_DEEP = b"<x><id>UK</id>" + b"<a>" * 260 + b"</a>" * 260 + b"</x>"
XML_TOO_LARGE = b"<x><id>UK</id>" + b" " * LIMIT_BYTES + b"</x>"


@pytest.mark.parametrize("value", [b"\0" * (LIMIT_BYTES + 1), b"<x>" + b"y" * LIMIT_BYTES, b"1,2\n" * LIMIT_BYTES])
def test_what_is_no_json_counts_as_none_however_large(value: bytes) -> None:
    routing = router(replace(BY_QUANTITY, rule_id="a", priority=1), replace(LOW_STOCK, rule_id="b", priority=2))
    found = route(routing, FakeRecord(7, [("uow-destination", b"UK")], value, tp=STOCK))
    assert (found.rule_id, said(found).get("uow-error-case")) in {("b", None), ("b", b"bytes")}


@pytest.mark.parametrize(
    "value", [XML_TOO_DEEP, XML_TOO_LARGE, b"\xff\xfe" + XML_TOO_LARGE.decode().encode("utf-16-le")]
)
@pytest.mark.parametrize("rule", [{"accept": "path:/x/id"}, {"group_key": "path:/x/id", "on_no_key": OnNoKey.DEFAULT}])
def test_xml_beyond_a_bound_is_refused_and_does_not_count_as_absent(value: bytes, rule: dict[str, Any]) -> None:
    assert told(value, router(replace(LOW_STOCK, **rule)))[:2] == (b"DecodeError", b"xml")


@pytest.mark.parametrize("value", [b"\0" * (LIMIT_BYTES + 1), b"<x><id>", b"a <!ENTITY", b""])
def test_what_is_no_xml_counts_as_none(value: bytes) -> None:
    view = RecordView(None, value)
    assert (view.xml, view.refusal) == (None, None)


@pytest.mark.parametrize("on_no_key", [OnNoKey.PASS_THROUGH, OnNoKey.REJECT])
def test_a_bound_is_told_also_where_a_record_without_a_key_passes_or_is_rejected(on_no_key: OnNoKey) -> None:
    routing = router(replace(LOW_STOCK, group_key="path:quantity", on_no_key=on_no_key))
    value = b'{"quantity": 1, "a": %s}' % nested(100_000)
    assert told(value, routing)[:2] == (b"DecodeError", b"json")


def test_what_no_expression_looks_at_may_be_as_deep_as_it_likes() -> None:
    assert told(b'{"quantity": 1, "other": %s}' % nested(MAX_LEVELS + 1))[0] is None


@pytest.mark.parametrize("rule", [{"group_key": "path:quantity"}, {"delay_item": "quantity + 'x'"}])
def test_key_and_item_have_the_same_bounds(rule: dict[str, str]) -> None:
    routing = router(replace(LOW_STOCK, **rule), delays={("UK", "bolt"): 5})  # type: ignore[arg-type]
    assert told(b'{"quantity": %s}' % nested(100_000), routing)[:2] == (b"DecodeError", b"json")


def test_a_predicate_of_a_group_says_why_it_cannot_read_a_component() -> None:
    predicate = compile_predicate("sum(quantity) > 1")
    assert "nested too deep" in str(predicate.measure([], b'{"quantity": %s}' % nested(100_000)))


@pytest.mark.parametrize("group_key", ["request:path:id", "request"])
def test_an_id_of_a_request_with_half_a_character_is_refused(group_key: str) -> None:
    rule = replace(TRIPS, group_key=group_key, default_group=DefaultGroup.PER_NAME)
    given = FakeRecord(7, [("uow-correlation-id", b"trips/\xed\xa0\x80/x.1")], rb'{"id": "trips/\ud800/x.1"}', tp=STOCK)
    found = route(gathering(rule), given)
    headers = said(found)
    if group_key == "request":  # bytes that are no UTF-8 are replaced, as ever
        assert found.fate is Fate.ROUTED
    else:
        assert (headers["uow-error-class"], headers["uow-error-case"]) == (b"BadUnitIdError", b"no-correlation")
    assert RequestId.parse("trips/\ud800/x.1") is None


# -- failures that nobody foresaw


class Broken(Exception):
    """As none of the code raises."""


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise Broken


class Panic(BaseException):
    """As code in Rust raises it."""


FAILURES = (
    Broken("a\nb"),
    RecursionError(),
    MemoryError(),
    TypeError("x"),
    UnicodeEncodeError("utf-8", "x", 0, 1, "y"),
    OSError("x"),
    Mute(),
    Panic("\ud800"),
)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("rule", [{"accept": "path:/x"}, {"group_key": "path:/x"}, {"delay_item": "path:/x"}])
def test_an_exception_that_nobody_foresaw_sets_its_record_aside(
    failure: BaseException, rule: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(value: bytes) -> Any:
        raise failure

    monkeypatch.setattr("uow.processor.rules.record_view.read_xml", fail)
    given = FakeRecord(7, [("uow-destination", b"UK"), ("x", b"1")], b"<x/>", b"key", tp=STOCK)
    found = route(router(replace(LOW_STOCK, **rule), delays={("UK", "bolt"): 5}), given)  # type: ignore[arg-type]
    assert (found.fate, found.rule_id, found.fault) == (Fate.SET_ASIDE, "low-stock", failure)
    assert found.sent[:3] == ("supply.rejected", b"key", b"<x/>")
    headers = said(found)
    assert headers["uow-error-class"] == b"InternalError"
    assert headers["uow-error-case"] == type(failure).__name__.encode()
    assert headers["uow-input"] == headers["uow-source"] == b"stock.events/2/7"
    assert headers["x"] == b"1"
    assert b"\n" not in (headers["uow-error-text"] or b"")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_the_end_of_the_process_is_no_matter_of_a_record(
    failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(value: bytes) -> Any:
        raise failure

    monkeypatch.setattr("uow.processor.rules.record_view.read_xml", fail)
    with pytest.raises(failure):
        route(router(replace(LOW_STOCK, accept="path:/x")), FakeRecord(7, [], b"<x/>", tp=STOCK))


def test_a_router_that_may_set_no_more_aside_stops_there_and_keeps_what_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = Place.text
    monkeypatch.setattr(Place, "text", lambda self, view: view.value.decode("ascii") and once(self, view))
    values = [b'{"p": "a"}', b"\xff", b'{"p": "b"}', b"\xff", b'{"p": "c"}']
    given = [FakeRecord(offset, [], value, tp=STOCK) for offset, value in enumerate(values)]
    found = RoutedRecords(may_set_aside=lambda offset, fault: offset < 2)
    many = ManyRecords(router(replace(LOW_STOCK, group_key="path:p", default_group=DefaultGroup.PER_NAME)))
    many.route([(record.headers_, record) for record in given], b"stock.events/2/", T0, lambda record: True, found)
    assert found.stopped_at == 3
    assert [output.key for output in found.outputs] == [b"low-stock/a", None, b"low-stock/b"]
    assert found.counts == {("low-stock", Fate.ROUTED): 2, ("low-stock", Fate.SET_ASIDE): 1}


# -- the class of them: random records under random rules


TEXTS = (
    "UK",
    "\ud800",
    "a\0b",
    "\x85",
    "r/x/y.1",
    "r/\ud800/x.1",
    "é" * 200,
    "",
    " ",
    "9" * 5000,
    "1e999",
    "*",
    "ß\u0130",
)


def documents(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 5 else 5)
    match kind:
        case 0:
            return rng.choice([None, True, False, 0, -1, 1e308, 10**400, 0.1])
        case 1 | 2 | 3 | 4:
            return rng.choice(TEXTS)
        case 5:
            return [documents(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(("p", "quantity", "id", "a", *TEXTS)): documents(rng, depth + 1) for _ in range(3)}


def values(rng: random.Random) -> bytes | None:
    match rng.randrange(10):
        case 0:
            return rng.choice([None, b"", b"\xef\xbb\xbf{}", b"NaN", b"[NaN]", b'"\\ud800"', b"1e999", b"-" * 50])
        case 1:
            return rng.randbytes(rng.randrange(200))
        case 2:
            return b'{"p": %s, "quantity": %s}' % ((nested(rng.choice([70, 400, 600, 3000])),) * 2)
        case 3:
            tags = rng.sample(("a", "b", "p", "quantity", "x:y", "é"), 3)
            return (
                "".join(f"<{tag} id='{rng.choice(['1', '&#0;', '&amp;', '&e;'])}'>" for tag in tags).encode() + b"</p>"
            )
        case 4:
            encoding = rng.choice(["utf-16", "punycode", "utf-7", "ISO-8859-1", "hex", "nothing", "UCS-4"])
            return f"<?xml version='1.0' encoding='{encoding}'?><p id='1'>{rng.choice(['x', 'é'])}</p>".encode()
        case 5:
            return json.dumps({name: documents(rng) for name in ("p", "quantity", "id")}).encode()
        case _:
            return json.dumps(
                {"p": rng.choice(["UK", "bolt", "x", 3]), "quantity": rng.choice([1, 2.5, -1]), "id": "trips/a/b.1"}
            ).encode()


def headers(rng: random.Random) -> list[tuple[str, bytes | None]] | None:
    names = ("uow-destination", "uow-id", "uow-input", "uow-rule", "uow-seq", "uow-count", "uow-end", "uow-kind", "uow-depth",
             "uow-correlation-id", "uow-origin-kind", "uow-origin-id", "uow-component-id", "uow-erased", "uow-source-name", "uow-pos",
             "JMSXGroupID", "fragment.index", "mq-group-id", "mq-msg-flags", "correlationId", "x", "", "é")  # fmt: skip
    raws = (
        None,
        b"",
        b"unit",
        b"1",
        b"-1",
        b"9" * 30,
        b"\xff",
        b"UK",
        b"stock.events/2/8",
        b"r/x/y.1",
        b"\0",
        b"n" * 300,
    )
    return [(rng.choice(names), rng.choice(raws)) for _ in range(rng.randrange(6))] or rng.choice([None, []])


def generated(rng: random.Random) -> RecordRouting:
    """A router of rules that `uow rules check` accepts, of a random destination."""
    keys = ("header:uow-destination", "path:p", "path:$.p[0]", "path:/p", "path://*[local-name()='p']", "path:/p/@id", "key",
            "path:p pattern:*x", "header:x + path:p", "constant:all")  # fmt: skip
    accepts = (None, "quantity > 0", "p == 'UK' || path('/p') == 'x'", "size(p) > 2", "has(p.quantity)", "p in [1, 'a', quantity]",
               "double(quantity) * 2 >= 1", "p.a.id.startsWith('r')", "p[0] == p[1]", "quantity / p > 1", "p + quantity == 'x'",
               "path('$.p') < header('x')", "!p", "p ? quantity : id", "-quantity < 0", "key() == p")  # fmt: skip
    rule = replace(
        LOW_STOCK,
        group_key=rng.choice(keys),
        accept=rng.choice([None, *accepts]) if rng.random() < 0.6 else None,
        delay_item=rng.choice([None, "path:p", "quantity + 1"]),
        default_group=rng.choice([*DefaultGroup]),
        key_case=rng.choice([*KeyCase]),
        on_no_key=rng.choice([*OnNoKey]),
    )
    families = frozenset(family for family in AliasFamily if rng.random() < 0.3)
    policy = DestinationPolicy(
        handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY,
        accept_aliases=families,
        value_format=rng.choice([*ValueFormat]),
    )
    if rng.random() < 0.2:
        return gathering(replace(TRIPS, group_key=rng.choice(["request", "request:path:p", "request:path:/p"])))
    if rng.random() < 0.2:
        source = Source("low-stock", "one", 1, correlation_path="path:p", correlation_pattern="*x")
        sources = (source, replace(source, source_name="stock.events", correlation_pattern=None))
        per_name = replace(rule, default_group=DefaultGroup.PER_NAME)
        return router(per_name, policy=policy, sources=sources, delays={("UK", "bolt"): 5})
    return router(rule, policy=policy, delays={("UK", "bolt"): 5})


def of_examples() -> Iterator[RecordRouting]:
    """The routers of every rule set that is shipped."""
    for path in sorted(EXAMPLES.rglob("*.toml")):
        if "rule_id" in (text := path.read_text()):
            rules = RuleSet(read_rules(text, 0))
            policy = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
            targets = {
                rule.destination: RouteTarget(
                    DestinationTopics("shop", rule.destination), policy, RecordLimit(INPUT_LIMIT_BYTES)
                )
                for rule in rules.rules
            }
            ids = tuple(rule.rule_id for rule in rules.rules)
            yield routings_of(rules, {"r": RouterSettings(("stock.events",), ids)}, targets)["stock.events"]


@pytest.mark.parametrize("seed", range(30))
def test_nothing_but_a_routed_record_or_a_refusal_ever_comes_out(seed: int) -> None:
    rng = random.Random(seed)
    fates: Counter[Fate] = Counter()
    for routing in [*of_examples(), *(generated(rng) for _ in range(10))]:
        given = [
            FakeRecord(at, headers(rng), values(rng), rng.choice([None, b"k", b"\xff"]), tp=STOCK) for at in range(40)
        ]
        found = RoutedRecords()
        many = ManyRecords(routing)
        many.route([(each.headers_, each) for each in given], b"stock.events/2/", T0, lambda record: True, found)
        fates.update({fate: count for (_, fate), count in found.counts.items()})
        assert sum(found.counts.values()) == len(given)
        for output in found.outputs:
            assert output.topic.endswith((".components", ".rejected", ".commands"))
            assert all(type(name) is str and type(raw) in (bytes, type(None)) for name, raw in output.headers)
            assert type(output.key) in (bytes, type(None))
    assert fates[Fate.SET_ASIDE] == 0
    assert fates[Fate.ROUTED]
    assert fates[Fate.REJECTED]


def test_an_expression_over_hostile_values_is_unknown_and_raises_nothing() -> None:
    texts = [
        "p == p",
        "p < 1",
        "size(p) > 0",
        "p in [p]",
        "double(p) > 0",
        "p.a == 1",
        "p[0] == 1",
        "p.startsWith(p)",
        "p * p > 0",
    ]
    rng = random.Random(1)
    for text in texts:
        expression = Expression(text)
        for _ in range(300):
            view = RecordView(None, values(rng))
            assert expression.boolean(view) in (True, False)
            assert isinstance(expression.text(view), str | None)
