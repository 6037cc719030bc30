"""The columns of the tables of rules, and their values by type: of a database, of a file, or of a record of `A-rules`. Pure.

Belongs here: what a column may hold by its type. Does not belong here: what a value means (`uow.processor.rules.checks`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_type_hints

MAX_INTEGER: Final = 2**63 - 1


class Column(NamedTuple):
    """A column.

    Attributes:
        name: Its name.
        kind: `bool`, `int`, `str`, or the enumeration of its words.
        nullable: True if it may be empty.
        needed: True if it has no default.
    """

    name: str
    kind: type[Any]
    nullable: bool
    needed: bool


def columns(kind: Any) -> Mapping[str, Column]:
    """The columns of a table, by name."""
    return _columns(kind)


@cache
def _columns(kind: Any) -> Mapping[str, Column]:
    hints = get_type_hints(kind)
    found = {}
    for each in fields(kind):
        hint = hints[each.name]
        parts = set(get_args(hint)) or {hint}
        (base,) = parts - {types.NoneType}
        found[each.name] = Column(each.name, base, types.NoneType in parts, each.default is MISSING)
    return found


def typed(column: Column, value: Any) -> Any:
    """A value of a column.

    Raises:
        ValueError: It is none; says what it must be.
    """
    kind = column.kind
    if value is None:
        if not column.nullable:
            raise ValueError("must not be empty")
        return None
    if issubclass(kind, StrEnum):
        if value not in list(kind):
            raise ValueError(f"must be one of {', '.join(kind)}")
        return kind(value)
    if kind is bool and isinstance(value, int) and value in (0, 1):  # SQLite's truth values are numbers
        return bool(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"must be {_KINDS[kind]}")
    if kind is str and not _is_text(value):
        raise ValueError("must be a text that UTF-8 can write")
    if kind is int and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError("is too large a number")
    return value


_KINDS: Final[Mapping[type[Any], str]] = {bool: "true or false", int: "a whole number", str: "a text"}


def _is_text(value: str) -> bool:
    """False of half a character, which JSON can say."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
