"""A set of rules as one record of `A-rules`, from which routers start where the source is away (B-17). Pure.

Every row has its own version, so that rows have the same names after a start from here as before. Older rows and rules are there as far as
names need them; versions that nothing refers to are left out.

Belongs here: those bytes. Does not belong here: rows as the assembler needs them (`uow.topics.rules`), Kafka.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from uow.processor.rules.columns import TABLES, WrongRows, tables_of
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.schemas.error_classes import Complaint
from uow.topics.rules import MIRROR_VERSION

_RULES: Final = "rules"


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
    rows = {name: sorted((asdict(each) for each in getattr(kept, name)), key=str) for name in TABLES}
    return json.dumps({"v": MIRROR_VERSION, **rows}, sort_keys=True, separators=(",", ":")).encode()


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
