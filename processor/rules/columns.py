"""A row of a table, whether of a database or of a file, as a value of `uow.topics.rules`: names, types and words are checked. Pure.

Belongs here: the tables' names, and a mapping as a value. Types of columns are in `uow.topics.columns`. Does not belong here: what the values mean (`checks.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, Final, TypeVar

from uow.processor.rules.rule_set import RuleTables
from uow.schemas.error_classes import Complaint
from uow.topics.columns import columns, typed
from uow.topics.rules import Change, Delay, Parameter, Row, Rule, Source

TABLES: Final[Mapping[str, type[Any]]] = {
    "changes": Change,
    "rules": Rule,
    "rows": Row,
    "delays": Delay,
    "sources": Source,
    "parameters": Parameter,
}
"""For each field of `RuleTables` the type of its values."""
NAMES: Final[Mapping[type[Any], str]] = {
    Change: "uow_rule_change",
    Rule: "uow_rule",
    Row: "uow_rule_row",
    Delay: "uow_rule_delay",
    Source: "uow_rule_source",
    Parameter: "uow_rule_parameter",
}
"""The table of each type."""
T = TypeVar("T")


class WrongRows(ValueError):
    """Rows that are no values of their tables.

    Attributes:
        complaints: One for each.
    """

    def __init__(self, complaints: Iterable[Complaint]) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(map(str, self.complaints)))


def value_of(kind: type[T], row: Mapping[str, Any], where: str) -> T:
    """A row as a value.

    Args:
        kind: The value's type, of `TABLES`.
        row: By column. Columns that are absent have their defaults.
        where: Names the row in complaints.

    Raises:
        WrongRows: With every complaint.
    """
    known = columns(kind)
    complaints = [
        Complaint(f"{where}.{name}", value, _unknown(name, known)) for name, value in row.items() if name not in known
    ]
    values = {}
    for name, column in known.items():
        if name not in row:
            if column.needed and not column.nullable:
                complaints.append(Complaint(f"{where}.{name}", None, "must be given"))
            continue
        try:
            values[name] = typed(column, row[name])
        except ValueError as error:
            complaints.append(Complaint(f"{where}.{name}", row[name], str(error)))
    if complaints:
        raise WrongRows(complaints)
    return kind(**{name: None for name, column in known.items() if column.needed and column.nullable} | values)


def _unknown(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"no such column; did you mean {close[0]}?" if close else "no such column"


def tables_of(rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> RuleTables:
    """Rows of all tables as values.

    Args:
        rows: By field of `RuleTables`.

    Raises:
        WrongRows: With every complaint about any of them.
    """
    made: dict[str, list[Any]] = {name: [] for name in TABLES}
    complaints: list[Complaint] = []
    for name, kind in TABLES.items():
        for row in rows.get(name, ()):
            try:
                made[name].append(value_of(kind, row, label(kind, row)))
            except WrongRows as error:
                complaints += error.complaints
    if complaints:
        raise WrongRows(complaints)
    return RuleTables(**{name: tuple(values) for name, values in made.items()})


def told(value: Any, without: Collection[str]) -> dict[str, Any]:
    """The columns of a value that say something: those without a default, and those that differ from theirs."""
    known, defaults = columns(type(value)), {each.name: each.default for each in fields(value)}
    return {
        name: each
        for name, each in asdict(value).items()
        if name not in without and each is not None and (known[name].needed or each != defaults[name])
    }


def label(kind: type[Any], row: Mapping[str, Any]) -> str:
    """Names a row for people: table without its prefix, and key without its version."""
    keys = ("rule_id", "routing_name", "source_name", "item", "name")
    return "/".join([NAMES[kind].removeprefix("uow_"), *(str(row[key])[:64] for key in keys if key in row)])
