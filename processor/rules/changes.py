"""One version of rules and the next: rows to be written, and differences for people (B-19, B-214). Pure.

A set that is put in force is whole: a rule, row, delay or source that it lacks is taken away, by a row that disables it. Nothing is
ever changed in place.

Belongs here: comparing sets. Does not belong here: writing them (`store.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from uow.processor.rules.columns import TABLES, told
from uow.processor.rules.rule_set import RuleSet, RuleTables, default_parameter
from uow.schemas.error_classes import UowError
from uow.topics.rules import Change, Delay, Parameter, Row


class CannotChange(UowError):
    """A change that cannot be made; the message says why and what to do."""


class RulesUnavailable(UowError):
    """The rules cannot be read now; the message says from where and why."""


class Difference(NamedTuple):
    """A column that two versions differ in.

    Attributes:
        name: The row of the table, such as `row low-stock/France`.
        column: The column; empty for a row that one of them lacks.
        old: Its value before; None also where the row was not there.
        new: Its value after.
    """

    name: str
    column: str
    old: Any
    new: Any


def rows_for(current: RuleSet, wanted: RuleSet, change: Change) -> RuleTables:
    """The rows of a change after which the rules are as they are in another set.

    Args:
        current: The rules as they are.
        wanted: The rules as they shall be, of any versions.
        change: Version, author and reason.

    Raises:
        CannotChange: Nothing differs, or one version cannot make it so.
    """
    before, after = current.content(with_disabled=True), wanted.content()
    rows = [values[0] for key, values in after.items() if before.get(key) != values]
    rows += [
        taken_away for key, values in before.items() if key not in after and (taken_away := _taken_away(values[0]))
    ]
    by_table: dict[str, Any] = {
        name: tuple(replace(row, version=change.version) for row in rows if isinstance(row, kind))
        for name, kind in TABLES.items()
    }
    made = RuleTables(**by_table | {"changes": (change,)})
    if current.content() == after:
        raise CannotChange("nothing differs from the rules in force")
    if RuleSet(current.tables.with_rows_of(made)).content() != after:
        raise CannotChange(
            "several planned times of one row cannot be put in one version: put them one version after another"
        )
    return made


def _taken_away(value: Any) -> Any:
    match value:
        case Row():
            return replace(value, enabled=False, valid_from_ms=None, valid_to_ms=None)
        case Delay():
            return replace(value, delay_ms=None)
        case Parameter(name):
            return replace(value, value=default_parameter(name))
        case _:
            return replace(value, enabled=False) if value.enabled else None


def differences(old: RuleSet, new: RuleSet) -> Iterator[Difference]:
    """The columns that differ, by table and key."""
    before, after = old.content(), new.content()
    for key in sorted({*before, *after}):
        name = f"{key[0]} {'/'.join(key[1:])}"
        past, present = before.get(key), after.get(key)
        if past is None or present is None:
            yield Difference(name, "", past and _shown(past[0]), present and _shown(present[0]))
            continue
        if past != present:
            was, will_be = asdict(past[0]), asdict(present[0])
            for column, value in will_be.items():
                if was[column] != value:
                    yield Difference(name, column, was[column], value)


def _shown(value: Any) -> str:
    """The columns of a row that say something, on one line."""
    keys = ("rule_id", "routing_name", "item", "source_name", "name", "version")
    return ", ".join(f"{name} = {each}" for name, each in told(value, keys).items()) or "defaults"
