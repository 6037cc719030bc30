"""The fixture of section 5 as values; `fixture.toml` has the same."""

from __future__ import annotations

from pathlib import Path

from uow.processor.rules.rule_set import RuleTables
from uow.topics.policies import ValueFormat
from uow.topics.rules import Change, DefaultGroup, Row, Rule

FIXTURE = Path(__file__).parent / "fixture.toml"
NOON = 1_700_000_000_000
RULE = Rule("low-stock", 1, "supply", delay_item="path:product", default_group=DefaultGroup.SHARED)


def row(name: str, target: str, count: int | None, age_ms: int | None, version: int = 1, **more: object) -> Row:
    return Row(
        "low-stock",
        name,
        version,
        target_topic=target,
        complete_count=count,
        age_ms=age_ms,
        value_format=ValueFormat.XML,
        **more,  # type: ignore[arg-type]
    )


ROWS = (
    row("France", "orders.france", 10, 30_000),
    row("UK", "orders.uk", 5, 15_000),
    row("Spain", "orders.spain", 20, 60_000),
    row("*", "orders.other", 10, 60_000),
)
TABLES = RuleTables((Change(1, "supply team", "first rules", NOON),), (RULE,), ROWS)


def changed(version: int, *, why: str = "because", **parts: tuple[object, ...]) -> RuleTables:
    """The rows that one further version brings."""
    return RuleTables((Change(version, "buyer", why, NOON + version),), **parts)  # type: ignore[arg-type]
