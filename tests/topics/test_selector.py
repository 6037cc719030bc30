"""The language of a route's condition (W-98, W-99)."""

from __future__ import annotations

import pickle
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.topics.selector import (
    MAX_CHARS,
    MAX_DEPTH,
    Selector,
    SelectorError,
)

HEADERS: list[tuple[str, bytes | None]] = [
    ("uow-size", b"3"),
    ("uow-outcome", b"complete"),
    ("region", b"west"),
    ("region", b"east"),
    ("price", b"-2.50"),
    ("name", "Zoë's".encode()),
    ("broken", b"\xff"),
    ("empty", b""),
    ("null", None),
    ("two words", b"yes"),
    ("long", b"1" * 50),
]


@pytest.mark.parametrize(
    "true",
    [
        "uow-size = 3",
        "uow-size = 3.0",
        "uow-size <> 4 and uow-size<4 AND uow-size <= 3 AND uow-size > 2 AND uow-size >= 3",
        "uow-size BETWEEN 3 AND 3",
        "uow-size NOT BETWEEN 4 AND 9 AND region = 'west'",
        "price < -2.4",
        "region = 'west'",
        "region <> 'east'",
        "region IN ('north', 'west')",
        "region NOT IN ('north')",
        "uow-size IN (1, 3)",
        "name = 'Zoë''s'",
        "name LIKE 'Z%s' AND name LIKE '____s' AND name LIKE '%' AND NOT name LIKE '%x%'",
        "region NOT LIKE 'e%'",
        'nothing IS NULL AND "null" IS NULL AND broken IS NULL AND empty IS NOT NULL',
        '"two words" = \'yes\' AND "null" is null',
        "not (region = 'east' or uow-size = 4)",
        "NOT NOT region = 'west'",
        "region = 'east' OR uow-size = 3 AND uow-outcome = 'complete'",
        "uow-priority = 4",
        "nothing = 1 OR region = 'west'",
    ],
)
def test_condition_is_true_of_the_unit(true: str) -> None:
    assert Selector(true).accepts(HEADERS)
    assert not Selector(f"NOT ({true})").accepts(HEADERS)


@pytest.mark.parametrize(
    "unknown",
    [
        "nothing = 'x'",
        "nothing <> 'x'",
        "nothing > 0",
        "nothing LIKE '%'",
        "nothing IN ('x', 'y')",
        "nothing BETWEEN 0 AND 9",
        "region > 3",
        "region = 3",
        "empty = 0",
        "long > 0",
        "broken = 'x'",
        "\"null\" = 'x'",
        "nothing = 1 AND region = 'west'",
        "nothing = 1 OR region = 'east'",
    ],
)
def test_what_is_not_there_or_no_number_is_unknown_and_so_is_its_opposite(unknown: str) -> None:
    assert not Selector(unknown).accepts(HEADERS)
    assert not Selector(f"NOT ({unknown})").accepts(HEADERS)


def test_false_decides_an_and_and_true_an_or_beside_what_is_unknown() -> None:
    assert Selector("NOT (nothing = 1 AND region = 'east')").accepts(HEADERS)
    assert Selector("nothing = 1 OR region = 'west'").accepts(HEADERS)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "at character 1: expected the name of a header, found the end"),
        ("  ", "expected the name of a header, found the end"),
        ("region", "at character 7: expected =, <>, <, <=, >, >=, IS, BETWEEN, IN or LIKE, found the end"),
        ("7 = region", "at character 1: expected the name of a header, found '7'"),
        ("region =", "at character 9: expected a number, or a text in single quotes, found the end"),
        ("region = west", "at character 10: expected a number, or a text in single quotes, found 'west'"),
        ("region > 'west'", "at character 10: expected a number, found 'west'"),
        ("region LIKE 7", "at character 13: expected a text in single quotes, found '7'"),
        ("region IN 7", "at character 11: expected (, found '7'"),
        ("region IN (7", "at character 13: expected ), found the end"),
        ("region BETWEEN 1 OR 2", "at character 18: expected AND, found 'OR'"),
        ("region IS 'null'", "at character 11: expected NULL, found 'null'"),
        ("region NOT = 7", "at character 12: expected =, <>"),
        ("(region = 7", "at character 12: expected ), found the end"),
        ("region = 7 uow-size = 3", "at character 12: expected AND, OR or the end, found 'uow-size'"),
        ("region = 'west", "at character 10: ' begins nothing that is known"),
        ("region == 7", "at character 9: expected a number, or a text in single quotes, found '='"),
        ("region = 7; drop", "at character 11: ; begins nothing that is known"),
        ("region = 7days", "at character 10: 7 begins nothing that is known"),
        ("__import__('os') = 1", "at character 11: expected =, <>"),
        ("(" * 40 + "a = 1" + ")" * 40, f"at character {MAX_DEPTH + 1}: nested deeper than {MAX_DEPTH}"),
        ("NOT " * 40 + "a = 1", f"nested deeper than {MAX_DEPTH}"),
        ("a = 1 OR " * MAX_CHARS, f"is longer than {MAX_CHARS} characters"),
    ],
)
def test_a_text_that_is_no_condition_is_refused_with_place_and_reason(text: str, complaint: str) -> None:
    with pytest.raises(SelectorError, match=re.escape(complaint)):
        Selector(text)


def test_a_condition_tells_which_headers_it_asks_for() -> None:
    assert Selector("a = 1 AND NOT (\"b c\" IS NULL OR a LIKE 'x')").names == {"a", "b c"}


def test_conditions_are_equal_by_their_texts_and_travel_between_processes() -> None:
    one = Selector("a = 1")
    assert one == Selector("a = 1") != Selector("a=1")
    again = pickle.loads(pickle.dumps(one))  # noqa: S301  # our own bytes
    assert again == one
    assert again.accepts([("a", b"1")])


@given(st.text(alphabet="ab=<>()',.-\"%_ 17 ANDORNOTLIKEISNULLBETWEEN\u00e9\n", max_size=60) | st.text(max_size=30))
def test_any_text_is_a_condition_or_is_refused_as_none(text: str) -> None:
    try:
        selector = Selector(text)
    except SelectorError:
        return
    assert selector.accepts(HEADERS) in (True, False)


@given(st.text("ab%_", max_size=12), st.text("ab\n", max_size=12))
def test_like_agrees_with_a_regular_expression(pattern: str, text: str) -> None:
    oracle = "".join({"%": ".*", "_": "."}.get(char, char) for char in pattern)
    expected = re.fullmatch(oracle, text, re.DOTALL) is not None
    assert Selector(f"a LIKE '{pattern}'").accepts([("a", text.encode())]) is expected


def test_a_pattern_of_many_wildcards_costs_no_more_than_the_product_of_the_lengths() -> None:
    text = "a" * 20_000
    assert not Selector(f"a LIKE '{'%a' * 60}%b'").accepts([("a", text.encode())])


@given(st.decimals(-1000, 1000, places=2), st.decimals(-1000, 1000, places=2), st.sampled_from(["<", "<=", ">", ">="]))
def test_numbers_compare_as_numbers(left: Decimal, right: Decimal, order: str) -> None:
    expected = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[order]
    assert Selector(f"a {order} {right}").accepts([("a", str(left).encode())]) is expected
