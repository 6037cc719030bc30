"""Rules in a TOML file, with the names of the tables: a whole set of one version, read and written.

```toml
version = 2                       # must grow with every change
author = "supply team"
why = "more for France"

[parameter]
reply_hold_ms = 30000

[[rule]]
rule_id = "low-stock"
destination = "supply"
row = [{ routing_name = "France", complete_count = 20 }, { routing_name = "*", age_ms = 60000 }]
delay = [{ routing_name = "France", item = "bolt", delay_ms = 5000 }]
source = [{ source_name = "invoice", quantity = 2 }]
```

Every row has the version of the file, unless it says one of its own, which is lower: so a planned row can stand beside the older one
that holds until then.

Belongs here: that form. Does not belong here: what it means (`checks.py`), files as a source that changes (`store.py`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from uow.processor.rules.columns import WrongRows, tables_of, told
from uow.processor.rules.rule_set import Content, RuleSet, RuleTables
from uow.schemas.error_classes import Complaint
from uow.topics.rules import Delay, Row, Rule, Source

MAX_BYTES: Final = 16_777_216
"""Largest file."""
_PARTS: Final = {"row": "rows", "delay": "delays", "source": "sources"}
_HEAD: Final = ("version", "author", "why", "changed_at_ms")


def read_rules(text: str, changed_at_ms: int) -> RuleTables:
    """The rules in the text of a file.

    Args:
        text: The text.
        changed_at_ms: When it was changed, epoch ms; it may say so itself.

    Raises:
        WrongRows: With every complaint.
    """
    if len(text) > MAX_BYTES:
        raise WrongRows([Complaint("file", len(text), f"is longer than {MAX_BYTES} characters")])
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongRows([Complaint("file", "...", f"is not TOML: {error}")]) from None
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise WrongRows([Complaint("version", version, "must be a whole number from 1")])
    complaints = [
        Complaint(name, "...", "no such key; there are version, author, why, parameter and rule")
        for name in document
        if name not in (*_HEAD, "parameter", "rule")
    ]
    rows = _rows(document, version, complaints)
    rows["changes"].append({"changed_at_ms": changed_at_ms} | {key: document[key] for key in _HEAD if key in document})
    complaints += [
        Complaint("version", each["version"], f"is above the file's, {version}")
        for several in rows.values()
        for each in several
        if isinstance(each["version"], int) and each["version"] > version
    ]
    try:
        tables = tables_of(rows)
    except WrongRows as error:
        raise WrongRows([*complaints, *error.complaints]) from None
    if complaints:
        raise WrongRows(complaints)
    return tables


def _rows(document: Mapping[str, Any], version: int, complaints: list[Complaint]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {"changes": [], "rules": [], "rows": [], "delays": [], "sources": []}
    rows["parameters"] = _parameters(document.get("parameter", {}), version, complaints)
    for rule in _list(document.get("rule", []), "rule", complaints):
        rows["rules"].append({"version": version} | {key: each for key, each in rule.items() if key not in _PARTS})
        of_rule = {"rule_id": rule.get("rule_id", ""), "version": version}
        for part, table in _PARTS.items():
            rows[table] += [of_rule | each for each in _list(rule.get(part, []), part, complaints)]
    return rows


def _list(value: Any, name: str, complaints: list[Complaint]) -> list[dict[str, Any]]:
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return value
    complaints.append(Complaint(name, "...", "must be a list of tables"))
    return []


def _parameters(value: Any, version: int, complaints: list[Complaint]) -> list[dict[str, Any]]:
    if not isinstance(value, dict):
        complaints.append(Complaint("parameter", "...", "must be a table"))
        return []
    return [{"name": name, "version": version, "value": str(each)} for name, each in value.items()]


def written(rules: RuleSet) -> str:
    """The text of a file with all that is in force; reading it gives an equal set."""
    lines = [f"version = {rules.version}"]
    for change in rules.tables.changes:
        if change.version == rules.version:
            lines += [f"author = {_text(change.author)}", f"why = {_text(change.why)}"]
    content = rules.content()
    lines += ["", *_parameter_lines(content)]
    for rule in rules.rules:
        of_rule = [values[0] for key, values in content.items() if key[1] == rule.rule_id]
        lines += ["[[rule]]", *_pairs(rule, ("version",))]
        lines += _part("row", [_pairs(*each) for each in _rows_of(rules, rule, content)])
        for part, kind in (("delay", Delay), ("source", Source)):
            lines += _part(part, [_pairs(each, ("rule_id", "version")) for each in of_rule if isinstance(each, kind)])
        lines.append("")
    return "\n".join(lines)


def _rows_of(rules: RuleSet, rule: Rule, content: Content) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """The versions of rows that are to be written, and columns that are not: the latest of a name has the version of the file."""
    names = set()
    for each in rules.row_versions():
        name = each.row.routing_name
        if each.row.rule_id == rule.rule_id and ("row", rule.rule_id, name) in content:
            yield each.row, ("rule_id",) if name in names else ("rule_id", "version")
            names.add(name)


def _parameter_lines(content: Content) -> list[str]:
    found = [f"{key[1]} = {_text(values[0].value)}" for key, values in content.items() if key[0] == "parameter"]
    return ["[parameter]", *found, ""] if found else []


def _part(name: str, several: Iterable[list[str]]) -> list[str]:
    lines = [f"    {{ {', '.join(pairs)} }}," for pairs in several]
    return [f"{name} = [", *lines, "]"] if lines else []


def _pairs(value: Any, without: Collection[str]) -> list[str]:
    return [f"{name} = {_text(each)}" for name, each in told(value, without).items()]


def _text(value: Any) -> str:
    return json.dumps(value).replace(
        "\x7f", "\\u007f"
    )  # of texts, numbers and truth values TOML and JSON write all else alike
