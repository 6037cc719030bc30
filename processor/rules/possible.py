"""Conditions of new rows by which the assembler closes no group, whatever comes: `all(count(3), not(count(3)))` (B-15). Pure.

Each condition needs something of a group: from how many components up to how many, how many bytes, which predicates are true. A group that `all`
holds for meets the needs of each part; for one that `any` holds for, only the needs that each part has are sure. Where no group is left, the
condition never holds. Moments are no need, since a limit of time and `not` of it may hold for one group; nor is a first component, since a call may
have no reply. So none is refused that could hold, and some that never hold are not found.

Only what is to be put in force is asked, never what is: an upgrade changes no rule (decision 122).

Belongs here: that judgement. Does not belong here: what a condition means for a group that exists (`uow.processor.core.conditions`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from uow.processor.rules import conditions
from uow.processor.rules.columns import label
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.error_classes import Complaint
from uow.topics.conditions import (
    AllOf,
    AnyOf,
    ByCommand,
    Bytes,
    ComponentDeadline,
    Condition,
    Count,
    EndFlagWithoutGaps,
    Manifest,
    Not,
    PerSource,
    Predicate,
    Urgent,
    alternatives,
)
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import Row

_Needs = Mapping[object, tuple[int, int]]
"""Least and most of a group's components (`Count`) and bytes (`Bytes`), and of each other condition: 1 and 1 if it must hold, 0 and 0 if it must not."""
_ANY: Final = 2**63


def complaints_about_closing(rules: RuleSet, destinations: Mapping[str, DestinationPolicy]) -> Iterator[Complaint]:
    """Of the rows that the latest version brings: conditions by which no group closes. Texts that cannot be read have other complaints."""
    by_id = {rule.rule_id: rule for rule in rules.rules}
    for row, resolved in rules.row_versions():
        rule = by_id.get(row.rule_id)
        if resolved is None or rule is None or row.version != rules.version or rule.destination not in destinations:
            continue
        most = destinations[rule.destination].max_components
        if row.complete_count is not None and row.complete_count > most:
            yield _complaint(row, "complete_count", f"is above max_components, {most}: a group of so many fails before")
        never: list[type] = [] if rules.sources_of(rule) else [PerSource]
        if rule.delay_item is None:
            never.append(ComponentDeadline)
        for column, read in (
            ("complete_when", conditions.read_complete_when),
            ("give_up_when", conditions.read_give_up_when),
        ):
            text = getattr(row, column)
            try:
                is_sound = text is None or may_close(read(text), most, never)
            except Exception:  # noqa: BLE001 - that has its complaint
                continue
            if not is_sound:
                yield _complaint(row, column, "holds for no group, so none would close by it")


def _complaint(row: Row, column: str, rule: str) -> Complaint:
    keys = {name: getattr(row, name) for name in ("rule_id", "routing_name")}
    return Complaint(f"{label(Row, keys)}.{column}", getattr(row, column), rule)


def may_close(condition: Condition, most: int, never: Collection[type] = ()) -> bool:
    """False if no group closes by this condition.

    Args:
        condition: The condition.
        most: Components that a group may have.
        never: Conditions that never hold under the rule.
    """
    if any(isinstance(each, ByCommand) for each in alternatives(condition)):
        return True  # a command closes a group without asking the others
    return _needs(condition, most, never, is_so=True) is not None


def _needs(condition: Condition, most: int, never: Collection[type], *, is_so: bool) -> _Needs | None:
    """All that a group needs for which the condition holds, or does not hold; None: there is no such group."""
    match condition:
        case Not(one):
            return _needs(one, most, never, is_so=not is_so)
        case AllOf(several) | AnyOf(several):
            found = [_needs(each, most, never, is_so=is_so) for each in several]
            return _of_all(found) if isinstance(condition, AllOf) is is_so else _of_any(found)
        case Count(n):
            return _within(Count, n, most) if is_so else _within(Count, 0, min(n - 1, most))
        case Bytes(n):
            return {Bytes: (n + 1, _ANY) if is_so else (0, n)}
        case ByCommand():
            return None if is_so else {}
        case _ if type(condition) in never:
            return None if is_so else {}
        case Predicate() | Urgent() | Manifest() | EndFlagWithoutGaps():
            return {condition: (int(is_so), int(is_so))}
        case _:  # by time: it may hold as well as its opposite, as time goes on
            return {}


def _within(of: object, least: int, most: int) -> _Needs | None:
    return {of: (least, most)} if least <= most else None


def _of_all(several: list[_Needs | None]) -> _Needs | None:
    """The needs of a group that has all of these."""
    found: dict[object, tuple[int, int]] = {}
    for needs in several:
        if needs is None:
            return None
        for of, (least, most) in needs.items():
            before = found.get(of, (0, _ANY))
            found[of] = least, most = max(least, before[0]), min(most, before[1])
            if least > most:
                return None
    return found


def _of_any(several: list[_Needs | None]) -> _Needs | None:
    """The needs that each group has which has some of these; they may be fewer than it has."""
    found = [needs for needs in several if needs is not None]
    if not found:
        return None
    common = set(found[0]).intersection(*found)
    return {of: (min(needs[of][0] for needs in found), max(needs[of][1] for needs in found)) for of in common}
