"""Public keys of commands in the configuration file: read, and checked (`uow.topics.command_keys`).

Belongs here: every complaint about such a key. Does not belong here: verifying (`uow.topics.command_keys`), private keys
(`uow.config.command_key_files`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from uow.topics.command_keys import ALL_VERBS, MAX_NAME_CHARS, NEVER_ENDS, CommandKey, is_public_key
from uow.topics.commands import Verb

_TEXTS = ("name", "public")
_NEEDED = {*_TEXTS, "verbs", "from"}


def read_command_keys(value: Any) -> tuple[list[CommandKey], list[str]]:
    """The keys in a value of the setting `command_keys`, and the rules that it breaks.

    Args:
        value: As TOML gave it, a list of tables. A text, as the environment would give it, breaks the rule.
    """
    keys: list[CommandKey] = []
    wrong: list[str] = []
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        return keys, ["must be tables in the file, [[destinations.NAME.command_keys]]"]
    for number, table in enumerate(value, 1):
        try:
            keys.append(_key(table))
        except ValueError as error:
            wrong.append(f"key {number}: {error}")
    return keys, wrong


def is_key_name(name: str) -> bool:
    """True if a key may have this name."""
    return 1 <= len(name) <= MAX_NAME_CHARS and name.isprintable() and name == name.strip()


def _key(table: dict[str, Any]) -> CommandKey:
    # a key that counts from ever would ask for signatures of commands that came before it
    if not _NEEDED <= {*table} <= {*_NEEDED, "until"}:
        raise ValueError("must have name, public, verbs and from, and may have until, and nothing else")
    name, public = (table[each] for each in _TEXTS)
    if not isinstance(name, str) or not is_key_name(name):
        raise ValueError(f"name must be a text of 1 to {MAX_NAME_CHARS} printable characters")
    if not isinstance(public, str) or not is_public_key(public):
        raise ValueError("public must be a raw Ed25519 key in base64, 32 bytes, and none of an example")
    since = _moment("from", table["from"])
    until = _moment("until", table["until"]) if "until" in table else NEVER_ENDS
    if until <= since:
        raise ValueError("until must be later than from")
    return CommandKey(name, public, _verbs(table["verbs"]), since, until)


def _verbs(value: Any) -> frozenset[str]:
    known = [*map(str, Verb), ALL_VERBS]
    if not isinstance(value, list) or not value or any(each not in known for each in value):
        raise ValueError(f"verbs must be a list of {', '.join(known)}")
    return frozenset(value)


def _moment(name: str, value: Any) -> int:
    """A moment in epoch ms."""
    if not isinstance(value, datetime) or value.tzinfo is None or value.timestamp() <= 0:
        raise ValueError(f"{name} must be a moment with its zone, without quotes: 2026-11-27T00:00:00Z")
    return round(value.timestamp() * 1000)
