"""Rules in scripts: `row("UK", complete_count=5, age_ms=15_000)` is a row, `r("UK", at=3)` a component that a router made for it.

Times are seconds after `T0`, as in `script`; a component arrives when it is appended, unless `arrived` says when its input record was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from tests.core.script import Sent, Story, bare, ms, policy_of, story, text
from uow.topics.conditions import Condition
from uow.topics.grouping import GroupPolicy, Measure, Moment, Rank
from uow.topics.grouping import policy_of as row_policy
from uow.topics.rules import Parameter, ResolvedRow, Row, Rule

RULE = "low-stock"
_inputs = count()


class Table:
    """A table of rules (`RuleTable`).

    Attributes:
        policies: Rows that are known.
        later: Rows that are known once `A-rules` is read to its end.
        reads: How often it was.
    """

    def __init__(self, *policies: GroupPolicy, later: Iterable[GroupPolicy] = ()) -> None:
        self.policies = {each.rule: each for each in policies}
        self.later = {each.rule: each for each in later}
        self.reads = 0

    def policy(self, name: str) -> GroupPolicy | None:
        return self.policies.get(name)

    kept = policy

    def catch_up(self, meanwhile: Callable[[], object]) -> None:
        self.reads += 1
        self.policies |= self.later


def row(
    name: str = "UK",
    version: int = 1,
    complete_when: Condition | None = None,
    give_up_when: Condition | None = None,
    measures: Sequence[tuple[str, Measure]] = (),
    event_time: Moment | None = None,
    rank: Rank | None = None,
    destination: dict[str, Any] | None = None,
    rule: dict[str, Any] | None = None,
    **settings: Any,
) -> GroupPolicy:
    """The policy of a row. `rule` and `destination` are settings of the rule and the destination, all others of the row."""
    sources, parameters = settings.pop("sources", ()), settings.pop("parameters", {})
    resolved = ResolvedRow(
        Rule(**{"rule_id": RULE, "version": version, "destination": "D"} | (rule or {})),
        Row((rule or {}).get("rule_id", RULE), name, version, **settings),
        sources,
        tuple([Parameter(name, version, str(value)) for name, value in parameters.items()]),
    )
    return row_policy(resolved, policy_of(**destination or {}), complete_when, give_up_when, measures, event_time, rank)


def r(
    name: str = "UK",
    at: float | None = None,
    arrived: float | None = None,
    delay: float | None = None,
    input: str | None = None,
    value: object = "<Test/>",
    version: int = 1,
    rule: str = RULE,
    id: str | None = None,
    **properties: object,
) -> Sent:
    """A component that the router made of an input record of its own, unless `input` names one."""
    said: list[tuple[str, object]] = [
        ("uow-id", id or f"{rule}/{name}"),
        ("uow-rule", f"{rule}/{name}@{version}"),
        ("uow-input", input or f"stock.events/0/{next(_inputs)}"),
        ("uow-arrived-at", None if arrived is None else ms(arrived)),
        ("uow-delay-ms", None if delay is None else round(delay * 1000)),
        *[(f"uow-{each.replace('_', '-')}", one) for each, one in properties.items()],
    ]
    return bare([(key, text(one)) for key, one in said if one is not None], text(value), f"{rule}/{name}".encode(), at)


def told_by(
    *steps: Any, rules: Sequence[GroupPolicy] = (), later: Iterable[GroupPolicy] = (), **settings: Any
) -> Story:
    """A script played with these rows; as one poll, and in polls of one, with the same result."""
    whole = story(*steps, rules=Table(*rules, later=later), **settings)
    single = story(*steps, rules=Table(*rules, later=later), poll=1, **settings)
    assert single.seen == whole.seen
    assert single.open == whole.open
    one, other = (sorted(played.outputs, key=lambda each: each.topic) for played in (single, whole))
    assert [each.value for each in one] == [each.value for each in other]
    return whole


def sizes(played: Story) -> list[tuple[str, str, int]]:
    """Outcome, reason and size of each unit, in order."""
    return [
        ((said["uow-outcome"] or b"").decode(), (said["uow-reason"] or b"").decode(), int(said["uow-size"] or b"0"))
        for said in played.unit_headers
    ]
