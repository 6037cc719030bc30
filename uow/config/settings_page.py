"""`docs/configuration.md`, from the declared settings: `python -m uow.config.settings_page` writes it, and a test checks that it is up to date.

Belongs here: the text around the tables. Does not belong here: any setting (`uow.config.settings`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uow.config.settings import (
    DESTINATION,
    KAFKA_RULES,
    LATER,
    LEGAL_NAME,
    ROUTER,
    SETTINGS,
    Setting,
)
from uow.config.value_types import ValueType
from uow.topics.command_keys import MAX_NAME_CHARS
from uow.topics.selector import MAX_CHARS

PAGE = Path("docs") / "configuration.md"

HEAD = f"""\
# Configuration

<!-- Written by `python -m uow.config.settings_page` from `uow/config/settings.py`. Do not edit. -->

Settings are in `uow.toml` ([an example](../examples/uow.toml)); `-c FILE` names another file. Environment variables
override it. `uow config show` prints the effective values and where each came from; `uow config check` reports every
mistake at once. Unknown sections and settings are mistakes; they are never ignored.

## Environment variables

`UOW_<SECTION>__<KEY>`, in capitals or small letters: `UOW_WORKER__POLL_RECORDS=2000`. Lists are written with commas.

| Setting | Variable |
| --- | --- |
| `[application]` `id` | `UOW_APPLICATION__ID` |
| `[kafka]` `"security.protocol"` | `UOW_KAFKA__SECURITY_PROTOCOL`: `_` stands for `.` |
| `[destinations.megazon]` `shape` | `UOW_DESTINATIONS__MEGAZON__SHAPE` |
| `[destinations."West.Megazon"]` `shape` | `UOW_DESTINATIONS__WEST_MEGAZON__SHAPE` |

A destination's name is part of topic names: {LEGAL_NAME}.
A variable cannot spell small letters, dots and dashes. So it means the destination in the file whose name is the same when both are written in
small letters and with `_` for `.` and `-`; if several names fit, that is a mistake. A destination that the file does not name can be given by
variables alone; its name is then that of the variable in small letters.
In TOML a name with a dot needs quotes: `[destinations."west.megazon"]`.

## Templates

A destination may inherit settings from a template, key by key; a setting of its own overrides the template:

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

A route sends the units that meet its condition, whole, to a topic of its own, for example to keep urgent units apart.
The condition is evaluated once, when the unit is written, in the transaction that writes it; a unit that meets no condition goes to
`NAME.units`, and so does plain traffic. The partition number stays the same, and every topic keeps the order in which units became complete.

```toml
[[destinations.megazon.routes]]
when = "uow-priority >= 7"
to = "megazon.urgent"

[[destinations.megazon.routes]]
when = "region = 'west' AND NOT (uow-outcome = 'partial' OR customer LIKE 'test-%')"
to = "megazon.west"
```

The topic `to` belongs to this destination alone; `uow topics create` creates it, like `NAME.units`. Read it with `uow read NAME --topic megazon.urgent`
or `connection.units("megazon", group=..., topic="megazon.urgent")`. The Spark sink reads all of them into the same tables.

A route can be added at any time: run `uow topics create`, then restart workers and sink. A sink that has read a topic must go on reading it: do
not remove such a route, but give it a condition that no unit meets, `uow-size = 0`. `uow audit` expects every unit where the present routes
send it.

`when` is a condition on the [headers of the unit](wire-format.md#headers-of-a-unit): `uow-outcome`, `uow-size`, `uow-type` and so on, and the application's own headers, which
come from the end component. Its language is a small part of SQL, as in JMS selectors:

| Test | True when |
| --- | --- |
| `name = 'text'`, `name <> 'text'` | the header is, or is not, this text; a quote in a text is written twice |
| `name = 7`, `<>`, `<`, `<=`, `>`, `>=` | the header is a decimal number, and compares so |
| `name BETWEEN 1 AND 5` | both ends included |
| `name IN ('a', 'b')` | it is one of these texts or numbers |
| `name LIKE 'west-%'` | `%` stands for any characters, `_` for one |
| `name IS NULL` | there is no such header |

They are joined by `AND`, `OR`, `NOT` and parentheses; before `BETWEEN`, `IN`, `LIKE` and `NULL` there may be a `NOT`. Names are letters, digits, `_`,
`.` and `-`, others in double quotes. A test of an absent header is unknown, as in SQL, and a route accepts a unit only if its condition is true.
`uow-priority` is 4 on a unit without that header. A condition has at most {MAX_CHARS} characters.
"""

COMMAND_KEYS = f"""\
## `[[destinations.NAME.command_keys]]`

A key proves who sent a command, and a command is obeyed only if its key may sign its verb. `uow command-key create NAME --out FILE` makes a pair of keys
and prints these lines:

```toml
[[destinations.megazon.command_keys]]
name = "operators"
public = "..."
verbs = ["all"]
from = 2026-12-01T00:00:00Z

[[destinations.megazon.command_keys]]
name = "forwarder of the warehouse"
public = "..."
verbs = ["cancel"]
from = 2026-12-01T00:00:00Z
until = 2027-12-01T00:00:00Z
```

`name` has 1 to {MAX_NAME_CHARS} characters and stands in answers and outcomes; `public` is the raw Ed25519 key in base64 (those of RFC 8032 and of our pages, whose private keys everybody can read, are refused). `verbs` are the
[commands](wire-format.md#commands) that it may sign, `all` stands for every one. `from` and `until`, which may be left out, are moments with their zone; the key counts for what was
appended from the first on and before the second. The earliest `from` of all keys is the moment from which signatures are asked for.
`uow audit` and `uow rebuild` judge old commands by the file as it is now. So a key stays in it when it is replaced, with an `until`; to change its verbs give it an `until` and
add an entry with a later `from`, which may have the same name and the same public key (while several entries of a key count, it may sign the verbs of each). Both moments are later than the restart of the workers. `unsigned_commands` and
`command_window_ms` have no such times: with a shorter list or window commands that were obeyed count as refused in an audit of that time.
`closed_max_groups` is at least 1000 with keys, since so many ids of each key are remembered: a copy of an older command would be obeyed.
Like all settings of a destination these are the same for all of its workers, which are stopped to change them.

"""

KAFKA = """\
## `[kafka]`

Any librdkafka property, used for every Kafka client of the project: `"security.protocol" = "SASL_SSL"`. The properties below are set by the
project itself and refused, unless the given value means the same. Values of passwords, secrets and keys are never shown.

| Property | Accepted values | Why |
| --- | --- | --- |
"""

NOT_BUILT = (
    "## Not supported yet\n\nThese names are reserved. Until they are supported they are refused rather than ignored:"
)


def page() -> str:
    """The whole of `docs/configuration.md`."""
    parts = [HEAD]
    for section in ("application", "client", "worker", "schemas", "rules", ROUTER, DESTINATION):
        parts.append(_section(section, [setting for setting in SETTINGS if setting.section == section]))
        if section == "application":
            parts.append(KAFKA + "".join(_kafka_row(rule.properties, rule.allowed, rule.rule) for rule in KAFKA_RULES))
    parts += [ROUTES, COMMAND_KEYS]
    if LATER:
        parts.append(f"{NOT_BUILT} {', '.join(f'`{name}`' for name in sorted(LATER))}.\n")
    return "\n".join(parts)


def _section(section: str, settings: list[Setting]) -> str:
    head = f"## `[{section}]`\n\n| Setting | Default | Values | Meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(_row(setting) for setting in settings)


def _row(setting: Setting) -> str:
    meaning = f"{setting.text} Reason: {setting.reason}." if setting.reason else setting.text
    default = "none: must be given" if setting.is_required else f"`{_default(setting.default)}`"
    return f"| `{setting.key}` | {default} | {_values(setting)} | {meaning} |\n"


def _default(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case frozenset() | tuple():
            return f"[{', '.join(sorted(map(_default, value)))}]"
        case _:
            return f'"{value}"'


def _values(setting: Setting) -> str:
    if setting.kind in (ValueType.CHOICE, ValueType.CHOICES):
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
