"""The mirror of all rules gives back the same rows under the same names (B-17)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.rules.low_stock import NOON, ROWS, RULE, TABLES, changed, row
from tests.rules.test_store import EVERYTHING
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.mirror import mirrored, read_mirror
from uow.processor.rules.rule_set import RuleSet


def test_rows_have_the_same_names_after_a_start_from_the_mirror() -> None:
    rules = RuleSet(
        TABLES.with_rows_of(EVERYTHING)
        .with_rows_of(changed(3, rows=(row("France", "orders.paris", 3, 1, 3, valid_from_ms=NOON),)))
        .with_rows_of(changed(4, rules=(replace(RULE, version=4, order_by="sequence"),)))
        .with_rows_of(changed(5, rows=(replace(ROWS[1], version=5, complete_count=6),)))
    )
    again = RuleSet(read_mirror(mirrored(rules)))
    assert again.version == 5
    assert again.content() == rules.content()
    for name in ("France", "UK", "Spain", "Mars"):
        for at in (NOON - 1, NOON):
            found = again.resolve(RULE, name, at)
            assert found == rules.resolve(RULE, name, at)
            assert found is not None
    assert mirrored(again) == mirrored(rules)
    assert {each.version for each in again.tables.rows if each.routing_name == "UK"} == {5}


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, mirrored(RuleSet(TABLES)).replace(b'"UK"', b"7")]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WrongRows):
        read_mirror(data)
