"""Rules as values: names of rows, and the text that the mirror `A-rules` keeps (aggregation, section 5)."""

from __future__ import annotations

import json

import pytest

from uow.schemas.error_classes import DecodeError
from uow.topics.policies import Shape, ValueFormat
from uow.topics.rules import Parameter, ResolvedRow, Row, Rule, RuleName, Source, WaitFrom

FRANCE = Row("low-stock", "France", 3, target_topic="orders.france", complete_count=10, value_format=ValueFormat.XML)
RULE = Rule("low-stock", 1, "supply", delay_item="path:product")


def test_a_row_is_named_by_rule_routing_name_and_the_highest_version_among_its_parts() -> None:
    assert ResolvedRow(RULE, FRANCE).name == "low-stock/France@3"
    assert ResolvedRow(RULE, FRANCE, (Source("low-stock", "orders", 5),)).name == "low-stock/France@5"
    assert ResolvedRow(RULE, FRANCE, (), (Parameter("reply_hold_ms", 8, "1"),)).version == 8


@pytest.mark.parametrize(
    ("text", "parts"), [("a/b@1", ("a", "b", 1)), ("a/b/c@d@20", ("a", "b/c@d", 20)), ("a/*@3", ("a", "*", 3))]
)
def test_a_name_is_read_whatever_the_routing_name_contains(text: str, parts: tuple[str, str, int]) -> None:
    assert RuleName.parse(text) == parts


@pytest.mark.parametrize("text", ["", "a", "a/b", "/b@1", "a/@1", "a/b@", "a/b@x", "a/b@-1", "a/b@\u0661", "a@1"])
def test_another_text_is_no_name(text: str) -> None:
    with pytest.raises(DecodeError):
        RuleName.parse(text)


def test_a_row_survives_the_mirror_with_its_types_and_equal_rows_are_equal_bytes() -> None:
    row = ResolvedRow(RULE, FRANCE, (Source("low-stock", "orders", 2, quantity=2, wait_from=WaitFrom.GROUP),))
    back = ResolvedRow.decode(row.encode())
    assert back == row
    assert back.encode() == row.encode()
    assert back.row.value_format is ValueFormat.XML
    assert back.sources[0].wait_from is WaitFrom.GROUP


def test_a_row_of_a_later_release_is_read_without_what_is_unknown_b217() -> None:
    told = json.loads(ResolvedRow(RULE, FRANCE).encode())
    told["row"] |= {"colour": "red", "shape": "reference"}
    del told["rule"]["priority"]
    back = ResolvedRow.decode(json.dumps(told).encode())
    assert (back.row.shape, back.rule.priority) == (Shape.REFERENCE, 100)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b'{"rule":{},"row":{},"sources":[],"parameters":[]}', b"[" * 100_000]
)
def test_bytes_that_are_no_row_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        ResolvedRow.decode(data)
