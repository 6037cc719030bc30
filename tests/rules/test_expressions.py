"""Expressions of rules: what they say of a record and of a group, and which are refused when they are loaded (B-06, B-41, B-111)."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.processor.rules.expressions import (
    Expression,
    compile_expression,
    compile_predicate,
)
from uow.processor.rules.paths import ExpressionError
from uow.processor.rules.record_view import RecordView
from uow.topics.grouping import Tally

SUM = compile_predicate("sum(amount) >= 1")
ORDER = {
    "quantity": 150.5,
    "price": 3,
    "big": 9_007_199_254_740_993,
    "product": "bolt",
    "lines": [{"name of it": "M8"}, 7],
    "nothing": None,
    "urgent": True,
    "key": "a field",
    "amount": "200",
    "a": {"b": 1},
}
RECORD = RecordView(b"k1", json.dumps(ORDER).encode(), [("h", b"5"), ("bad", b"\xff"), ("h", b"7")])
XML = RecordView(
    None,
    b'<o:order xmlns:o="urn:o"><customer id="7">A &amp; <b>B</b></customer><customer id="8"> C\n</customer><n>5</n></o:order>',
)


@given(st.lists(st.decimals(-(10**12), 10**12, places=2), min_size=1, max_size=30), st.randoms())
def test_a_sum_of_prices_is_exact_in_whichever_order_b41(amounts: list[Decimal], rnd: Random) -> None:
    def sum_of(some: list[Decimal]) -> Decimal:
        numbers = [SUM.measure((), b'{"amount": %s}' % str(each).encode()) for each in some]
        whole = Tally.of(Decimal(0))
        for number in numbers:
            assert not isinstance(number, str)
            whole = whole.plus(number[0])
        return whole.total

    wanted = Decimal(sum(int(each * 100) for each in amounts)) / 100
    assert sum_of(amounts) == sum_of(rnd.sample(amounts, len(amounts))) == wanted


def test_ten_times_ten_cents_are_one_b41() -> None:
    tallies = [Tally.of(Decimal("0.10"))]
    while len(tallies) < 10:
        numbers = SUM.measure((), b'{"amount": 0.10}')
        assert not isinstance(numbers, str)
        tallies.append(tallies[-1].plus(numbers[0]))
    assert [SUM.holds([each]) for each in tallies] == [False] * 9 + [True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("path:product", "bolt"),
        ("path:$.product", "bolt"),
        ("path:lines[0]['name of it']", "M8"),
        ("path:$.lines[-1]", "7"),
        ("path:big", "9007199254740993"),
        ("path:quantity", "150.5"),
        ("path:urgent", "true"),
        ("path:a", None),
        ("path:nothing", None),
        ("path:product.x", None),
        ("header:h", "7"),
        ("header:bad", None),
        ("header:none", None),
        ("key", "k1"),
        ("product", "bolt"),
        ("price > 2 ? 'dear' : 'cheap'", "dear"),
        ("price * 2", "6"),
    ],
)
def test_a_place_has_a_text(text: str, expected: str | None) -> None:
    assert compile_expression(text).text(RECORD) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("path:/*/customer", "A & B"),
        ("path://customer[2]", "C"),
        ("path://customer[@id='8']", "C"),
        ("path://customer[@id='8']/@id", "8"),
        ("path:/*[n='5']/customer/@id", "7"),
        ("path://*[local-name()='order']/n/text()", "5"),
        ("path:/order", None),
        ("path:product", None),
    ],
)
def test_an_xpath_finds_the_first_place_of_an_xml_value(text: str, expected: str | None) -> None:
    assert compile_expression(text).text(XML) == expected
    assert compile_expression(text).text(RECORD) in (None, "bolt")


@pytest.mark.parametrize(
    "text",
    [
        "quantity > 100",
        "price * quantity > 451 && price * quantity < 452",
        "price / 2 == 1.5",
        "product in ['nut', 'bolt']",
        "price in [1, 2, 3]",
        "lines[1] == 7",
        "a.b == 1",
        "has(a.b) && !has(a.c)",
        "missing == null",
        "missing > 1 || price > 1",
        "!(missing > 1 && price > 5)",
        "product.startsWith('bo') && product.endsWith('lt') && product.contains('ol')",
        "size(product) == 4",
        "double(amount) >= 200",
        "header('h') == '7'",
        "key() == 'k1' && key == 'a field'",
        "path('lines[0][\"name of it\"]') == 'M8'",
        "urgent",
        "path:urgent",
        "-price < -2",
    ],
)
def test_what_holds(text: str) -> None:
    assert compile_expression(text).boolean(RECORD)


@pytest.mark.parametrize(
    "text",
    ["missing > 1", "!(missing > 1)", "product > 1", "a.c.d == 1", "lines[9] == 1", "price", "double(product) > 0"],
)
def test_unknown_is_not_true(text: str) -> None:
    assert not compile_expression(text).boolean(RECORD)


def test_xml_is_compared_by_paths() -> None:
    assert compile_expression("double(path('//n')) > 4 && path('/*/customer/@id') == '7'").boolean(XML)


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"[" * 100_000, b'{"quantity":NaN}', b"9" * 5_000, b'{"quantity":{}}', b"<a>" * 300]
)
def test_a_value_that_cannot_be_read_makes_nothing_true(value: bytes | None) -> None:
    record = RecordView(None, value)
    assert not compile_expression("quantity > 0").boolean(record)
    assert compile_expression("path:quantity").text(record) is None
    assert compile_expression("path://quantity").text(record) is None


HOSTILE = [
    "",
    " ",
    "a" * 600,
    "(" * 33 + "1" + ")" * 33,
    "[" * 33 + "]" * 33,
    "1+" * 130 + "1",
    "1 +",
    "a b",
    "'a' 'b'",
    "r'x' == a",
    ".a",
    "a; b",
    "a\0",
    "{'a': 1}",
    "Foo{}",
    "a % 2",
    "__import__('os').system('x')",
    "[1, 2].map(x, [1, 2].map(y, x))",
    "a.all(x, x > 1)",
    "a.exists(x, true)",
    "a.filter(x, true)",
    "product.matches('((a{1,100}){1,100}){1,100}')",
    "timestamp('2020-01-01T00:00:00Z')",
    "duration('1h')",
    "true()",
    "sum(quantity) > 1",
    "9007199254740993 == big",
    "has(a)",
    "path(a)",
    "path('$..a')",
    "header('a\\'b')",
    "path:",
    "path:$..a",
    "path:$[?@.a > 1]",
    "path:$[*]",
    "path:$[0:100]",
    "path:a[",
    "path:" + "a." * 300 + "a",
    "path://a//b",
    "path:/a[count(//*[count(//*) > 1]) > 1]",
    "path:/a[position() < 3]",
    "path:document('http://x')",
    "path:/a | /b",
    "header:",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_expression_is_refused_when_it_is_loaded_b06(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(text)


@given(st.text("ab.()[]'\",+-<>=!&|?: 19pathhedrsizmcu", max_size=60))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    for make in (compile_expression, compile_predicate):
        try:
            made = make(text)
        except ExpressionError:
            continue
        assert isinstance(made.boolean(RECORD) if isinstance(made, Expression) else made.source, bool | str)


def held(text: str, *values: object) -> bool:
    """True if a predicate holds of a group of these JSON values."""
    predicate = compile_predicate(text)
    tallies: list[Tally] = []
    for value in values:
        numbers = predicate.measure((("weight", b"2.5"),), json.dumps(value).encode())
        assert not isinstance(numbers, str)
        if tallies:
            tallies = [tally.plus(number) for tally, number in zip(tallies, numbers, strict=True)]
        else:
            tallies = [Tally.of(number) for number in numbers]
    return predicate.holds(tallies)


def test_a_predicate_holds_once_its_running_sum_is_reached_b41() -> None:
    one = {"quantity": 200}
    assert [held("sum(quantity) >= 500", *[one] * count) for count in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max(a.b) == 3 && min(a.b) == 1", True),
        ("sum(a.b) / count() == 2", True),
        ("count() == 3", True),
        ("count() > 3 || sum(header('weight')) == 7.5", True),
        ("sum(path('a.b')) > 6", False),
        ("sum(a.b)", False),
    ],
)
def test_a_predicate_has_sum_min_max_and_count(text: str, expected: bool) -> None:
    assert held(text, {"a": {"b": 1}}, {"a": {"b": "3"}}, {"a": {"b": 2.0}}) is expected


def test_a_number_may_stand_for_what_a_component_does_not_have_b41() -> None:
    closes = "max(n, -1) >= 0 && count() == max(n, -1) + 1 && sum(k, 0) == max(n, -1) * (max(n, -1) + 1) / 2"
    end, one, two = {"n": 2}, {"k": 1}, {"k": 2, "n": None}
    for several in ([end, one, two], [one, end, two], [one, two, end]):
        assert [held(closes, *several[:size]) for size in (1, 2, 3)] == [False, False, True]
    assert held(closes, {"n": 0})
    assert not held(closes, end, one, one), "a copy is no other part"
    assert held("max(n, 0) == 3 && min(n) == 3", {"n": 3})
    assert compile_predicate("max(n, 0) > min(n)").measure((), b"{}") == "field n is no decimal number"
    assert compile_predicate("max(n, 0) > 1").measure((), b'{"n": "x"}') == "field n, else 0 is no decimal number"
    assert compile_predicate("max(n, 0) > 1").measure((), b"{") != (Decimal(0),), "it may well have one"
    for text in ("max(n, ) > 1", "max(n, 'x') > 1", "max(n, 0, 1) > 1", "count(0) > 1", "max(n, m) > 1"):
        with pytest.raises(ExpressionError):
            compile_predicate(text)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"quantity":"many"}', b'{"quantity":true}', b'{"quantity":[1]}', None])
def test_a_component_whose_number_cannot_be_read_says_which_b41(value: bytes | None) -> None:
    assert compile_predicate("sum(quantity) >= 500").measure((), value) == "field quantity is no decimal number"


@pytest.mark.parametrize(
    "text",
    [
        "quantity > 1",
        "sum(1) > 1",
        "sum(quantity",
        "sum() > 1",
        "count(a) > 1",
        "sum(sum(a)) > 1",
        "sum(a + 1) > 1",
        "sum(a).b",
        "size('a') > 1",
        "path('a') > 1",
        "sum(key()) > 1",
        *HOSTILE[:10],
    ],
)
def test_a_predicate_over_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_predicate(text)


def test_expressions_are_equal_by_their_texts_and_can_be_sent_to_another_process() -> None:
    for made in (compile_expression("price > 2"), compile_expression("path:product"), compile_predicate("count() > 1")):
        assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301
