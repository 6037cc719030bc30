"""`docs/configuration.md`, from the declared settings: `python -m uow.settings_page` writes it, a test looks for drift.

Belongs here: the page's words. Does not belong here: any setting (`uow.settings`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topics.selector import MAX_CHARS
from uow.kinds import Kind
from uow.settings import DESTINATION, KAFKA_RULES, LATER, LEGAL_NAME, SETTINGS, Setting

PAGE = Path("docs") / "configuration.md"

HEAD = f"""\
# Configuration

<!-- Written by `python -m uow.settings_page` from `uow/settings.py`. Do not edit. -->

Settings live in `uow.toml` ([an example](../examples/uow.toml)); `-c FILE` names another file. Environment variables
come on top. `uow config show` prints the effective values and where each came from; `uow config check` reports every
complaint at once. Unknown sections and settings are complaints, never ignored.

## Environment variables

`UOW_<SECTION>__<KEY>`, letter case ignored: `UOW_WORKER__POLL_RECORDS=2000`. Lists are written with commas.

| Setting | Variable |
| --- | --- |
| `[application]` `id` | `UOW_APPLICATION__ID` |
| `[kafka]` `"security.protocol"` | `UOW_KAFKA__SECURITY_PROTOCOL`: `_` stands for `.` |
| `[destinations.megazon]` `shape` | `UOW_DESTINATIONS__MEGAZON__SHAPE` |
| `[destinations."West.Megazon"]` `shape` | `UOW_DESTINATIONS__WEST_MEGAZON__SHAPE` |

A destination's name is part of topic names: {LEGAL_NAME}.
A variable cannot spell capitals, dots and dashes. So it means the destination in the file whose name reads the same
once it is written small and with `_` for `.` and `-`; where several do, that is a complaint. A destination that no file
names can be given by variables alone; its name is then the small letters of the variable.
In TOML a name with a dot needs quotes: `[destinations."west.megazon"]`.

## Templates

A destination may take settings over from a template, key by key; what it sets itself wins (W-67):

```toml
[templates.orders]
handling_policy = "single_message_delivery"
incomplete_expiration_ms = 60000

[destinations.megazon]
template = "orders"
```
"""

ROUTES = f"""\
## `[[destinations.NAME.routes]]`

A route sends the units that it accepts, whole, to a topic of its own: a selection, or a lane for what is urgent (W-98 to W-101).
Each unit is asked about once, when it is written, in the transaction that writes it; one that no route accepts goes to `NAME.units`, and so
does plain traffic. The partition number stays, and every topic keeps the order in which units became complete.

```toml
[[destinations.megazon.routes]]
when = "uow-priority >= 7"
to = "megazon.urgent"

[[destinations.megazon.routes]]
when = "region = 'west' AND NOT (uow-outcome = 'partial' OR customer LIKE 'test-%')"
to = "megazon.west"
```

`to` belongs to this destination alone; `uow topics create` makes it, like `NAME.units`. Read it with `uow read NAME --topic megazon.urgent`
or `connection.units("megazon", group=..., topic="megazon.urgent")`. The Spark sink reads all of them into the same tables.

A route is added any time: `uow topics create`, then start workers and sink again. Where a sink has read a topic it must go on: rather than remove
the route, give it a condition that no unit meets, `uow-size = 0`. `uow audit` expects all units where the routes of today send them.

`when` asks the headers of the unit (contract section 3): `uow-outcome`, `uow-size`, `uow-type` and so on, and the application's own, which
come from the end component. It is a small part of SQL, as JMS selectors are:

| Test | True when |
| --- | --- |
| `name = 'text'`, `name <> 'text'` | the header is, or is not, this text; a quote in a text is written twice |
| `name = 7`, `<>`, `<`, `<=`, `>`, `>=` | the header is a decimal number, and compares so |
| `name BETWEEN 1 AND 5` | both ends included |
| `name IN ('a', 'b')` | it is one of these texts or numbers |
| `name LIKE 'west-%'` | `%` stands for any characters, `_` for one |
| `name IS NULL` | there is no such header |

They are joined by `AND`, `OR`, `NOT` and parentheses; before `BETWEEN`, `IN`, `LIKE` and `NULL` there may be a `NOT`. Names are letters, digits, `_`,
`.` and `-`, others in double quotes. What is asked of a header that is not there is unknown, as in SQL, and a route accepts what is true only.
`uow-priority` is 4 where nothing else is said. A condition has at most {MAX_CHARS} characters.
"""

KAFKA = """\
## `[kafka]`

Any librdkafka property, for every client of ours: `"security.protocol" = "SASL_SSL"`. What would break a promise is
refused by name; a value that says the same as ours is accepted. Values of passwords, secrets and keys are never shown.

| Property | Accepted values | Why |
| --- | --- | --- |
"""

NOT_BUILT = "## Not built yet\n\nThese names are known and refused until something reads them, rather than ignored:"


def page() -> str:
    """The whole of `docs/configuration.md`."""
    parts = [HEAD]
    for section in ("application", "worker", "schemas", DESTINATION):
        parts.append(_section(section, [setting for setting in SETTINGS if setting.section == section]))
        if section == "application":
            parts.append(KAFKA + "".join(_kafka_row(rule.properties, rule.allowed, rule.rule) for rule in KAFKA_RULES))
    parts.append(ROUTES)
    parts.append(f"{NOT_BUILT} {', '.join(f'`{name}`' for name in sorted(LATER))}.\n")
    return "\n".join(parts)


def _section(section: str, settings: list[Setting]) -> str:
    head = f"## `[{section}]`\n\n| Setting | Default | Values | Meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(_row(setting) for setting in settings)


def _row(setting: Setting) -> str:
    meaning = f"{setting.text} Reason: {setting.reason}." if setting.reason else setting.text
    return f"| `{setting.key}` | `{_default(setting.default)}` | {_values(setting)} | {meaning} |\n"


def _default(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case frozenset() | tuple():
            return "[]"
        case _:
            return f'"{value}"'


def _values(setting: Setting) -> str:
    if setting.kind in (Kind.CHOICE, Kind.CHOICES):
        assert setting.choices is not None
        kind = f"{setting.kind.value} {', '.join(f'`{choice}`' for choice in setting.choices)}"
    else:
        kind = setting.kind.value
    return f"{kind}; {setting.bound.text}" if setting.bound.text else kind


def _kafka_row(properties: tuple[str, ...], allowed: frozenset[str], rule: str) -> str:
    values = ", ".join(f"`{value}`" for value in sorted(allowed)) or "none"
    return f"| {', '.join(f'`{name}`' for name in properties)} | {values} | {rule} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
