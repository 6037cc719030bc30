"""A set of rules as one record of `A-rules`, from which routers start where the source is away (B-17). Pure.

Every row has its own version, so that rows have the same names after a start from here as before. Older rows and rules are there as far as
names need them; versions that nothing refers to are left out. A set that fits into no record leaves one with its version alone: so readers know
that there is such a version.

Belongs here: those bytes. Does not belong here: rows as the assembler needs them (`uow.topics.rules`), Kafka.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from uow.processor.rules.columns import TABLES, WrongRows, tables_of
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.schemas.error_classes import Complaint
from uow.topics.rules import MIRROR_VERSION

_RULES: Final = "rules"
_LONGEST_BARE: Final = 100
"""Bytes of a record with a version alone, at most."""


def mirrored(rules: RuleSet) -> bytes:
    """The bytes; the same for equal rules, whoever writes them."""
    tables = rules.tables
    visible = {each.row for each in rules.row_versions()}
    kept = RuleTables(
        tuple(each for each in tables.changes if each.version == rules.version),
        tables.rules,
        tuple(each for each in tables.rows if each in visible),
        tuple(rules.delays()),
        tables.sources,
        tables.parameters,
    )
    return _encoded({name: sorted((asdict(each) for each in getattr(kept, name)), key=str) for name in TABLES})


def version_alone(version: int) -> bytes:
    """The record of a set that fits into none."""
    return _encoded({"version": version, _RULES: None})


def _encoded(told: dict[str, Any]) -> bytes:
    return json.dumps({"v": MIRROR_VERSION, **told}, sort_keys=True, separators=(",", ":")).encode()


def read_mirror(data: bytes) -> RuleTables:
    """The rules in these bytes.

    Raises:
        WrongRows: They are none.
    """
    try:
        told = json.loads(data)
        tables = tables_of({name: [{**row} for row in told[name]] for name in TABLES})
    except WrongRows:
        raise
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise WrongRows([Complaint(_RULES, "...", f"no rules: {' '.join(str(error).split())[:200]}")]) from None
    if tables.version < 1 or tables.until(tables.version) != tables:
        raise WrongRows([Complaint(_RULES, "...", "no version has all of these rows")])
    return tables


class LatestMirror:
    """The set of rules of the highest version among those that one reader of `A-rules` met, whatever came after it.

    Attributes:
        record: Its record; None if there is none.
        data: The same; None also if that has a version alone.
        version: Its version; 0 if there is none.
        others: Records of the same key that are no set of rules, or one of an earlier version than another before it.
        is_spoilt: True if such a record is the last one: compaction will keep nothing else.
    """

    def __init__(self) -> None:
        self.record: bytes | None = None
        self.data: bytes | None = None
        self.version = self.others = 0
        self.is_spoilt = False

    def read(self, value: bytes | None) -> RuleTables | None:
        """Takes the next record.

        Returns:
            Its rules; None if it is of an earlier version, or has a version alone.

        Raises:
            WrongRows: It is no set of rules; the one before it holds.
        """
        record = value or b""
        self.is_spoilt = True
        self.others += 1
        version, tables = _bare_version(record), None
        if not version:
            tables = read_mirror(record)
            version = tables.version
        if version < self.version:
            return None
        self.is_spoilt = False
        self.others -= 1
        self.record, self.version = record, version
        self.data = None if tables is None else record
        return tables


def _bare_version(data: bytes) -> int:
    """The version in a record that has it alone; 0 for any other."""
    if len(data) <= _LONGEST_BARE:
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            version = json.loads(data)["version"]
            if type(version) is int and data == version_alone(version):
                return max(version, 0)
    return 0
