"""Types of the values of settings, and how a text or a TOML value becomes one.

Belongs here: kinds, bounds and their parsers. Does not belong here: any setting (`uow.config.settings`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from uow.config.command_key_settings import read_command_keys
from uow.config.route_settings import read_routes

NEVER = -1


class WrongValue(ValueError):
    """A value breaks a rule; the message is the rule."""


class ValueType(Enum):
    """Type of a value; the enumeration's value is its name in `docs/configuration.md`."""

    TEXT = "text"
    INTEGER = "integer"
    SWITCH = "true or false"
    CHOICE = "one of"
    CHOICES = "list of"
    TEXTS = "list of texts"
    ROUTES = "tables of texts `when` and `to`"
    COMMAND_KEYS = "tables, see below"


@dataclass(frozen=True, slots=True)
class Bound:
    """The legal values: in words that follow "must be", and as a test."""

    text: str
    holds: Callable[[Any], bool]


ANY = Bound("", lambda value: True)


def at_least(minimum: int) -> Bound:
    """No less than `minimum`."""
    return Bound(f"at least {minimum}", lambda value: bool(value >= minimum))


def between(minimum: int, maximum: int) -> Bound:
    """From `minimum` to `maximum`, both included."""
    return Bound(f"{minimum} to {maximum}", lambda value: bool(minimum <= value <= maximum))


def never_or(minimum: int) -> Bound:
    """`NEVER`, or no less than `minimum` (W-72)."""
    return Bound(f"{NEVER} (never) or at least {minimum}", lambda value: value == NEVER or value >= minimum)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """`what`, with the nearest known name if there is one."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"{what}; did you mean {close[0]}?" if close else what


def parsed(kind: ValueType, choices: type[StrEnum] | None, value: Any) -> Any:
    """The value in the type of its kind; the environment gives texts only.

    Args:
        kind: The type that the value must have.
        choices: The enumeration of the values, for kinds CHOICE and CHOICES.
        value: The value as TOML or the environment gave it.

    Raises:
        WrongValue: Names the rule that the value breaks.
    """
    match kind:
        case ValueType.TEXT:
            return _text(value)
        case ValueType.INTEGER:
            return _integer(value)
        case ValueType.SWITCH:
            return _switch(value)
        case ValueType.CHOICE:
            return _choice(choices, _text(value))
        case ValueType.CHOICES:
            return frozenset(_choice(choices, text) for text in _texts(value))
        case ValueType.TEXTS:
            return tuple(_texts(value))
        case ValueType.ROUTES:
            return _tables(read_routes, value)
        case ValueType.COMMAND_KEYS:
            return _tables(read_command_keys, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongValue("must be a text")
    return value


def _integer(value: Any) -> int:
    digits = value.strip().removeprefix("-").replace("_", "") if isinstance(value, str) else ""
    if isinstance(value, bool) or not (isinstance(value, int) or (digits.isascii() and digits.isdigit())):
        raise WrongValue("must be an integer")
    return int(value)


def _switch(value: Any) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise WrongValue("must be true or false")
    return value


def _texts(value: Any) -> list[str]:
    """A TOML list, or a text with commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list):
        raise WrongValue("must be a list of texts")
    return [_text(item) for item in value]


def _tables(read: Callable[[Any], tuple[list[Any], list[str]]], value: Any) -> tuple[Any, ...]:
    found, wrong = read(value)
    if wrong:
        raise WrongValue("; ".join(wrong))
    return tuple(found)


def _choice(choices: type[StrEnum] | None, text: str) -> Any:
    assert choices is not None
    known = [str(choice) for choice in choices]
    if text not in known:
        raise WrongValue(unknown(f"must be one of {', '.join(known)}", text, known))
    return choices(text)
