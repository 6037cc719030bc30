"""`docs/access.md`: the rights of each role, from `uow.topics.access`.

Belongs here: the text around the tables. Does not belong here: any right.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Final

from uow.topics.access import NEEDS, ROLES, Need, Only, Pattern

PAGE: Final = Path("docs/access.md")
_WORDS: Final = {
    "{D}": "D",
    "{A}": "A",
    "{units}": "D.units, or the topics of its routes",
    "{targets}": "the target topics of its rules",
    "{replies}": "the target topics of its rules, else D.units",
    "{inputs}": "the inputs of its routers",
    "{from}": "the topic that it reads",
    "{to}": "the topic that it writes",
    "{held}": "A-D-groups-changelog",
    "{closed}": "A-D-closed-changelog",
    "{map}": "A-D-path-map",
    "{group}": "its consumer group",
    "{client}": "uow-, or its `transactional_id` or `client_id`",
    "{every}": "every topic of the destination",
}
_HEAD: Final = """\
# Access

<!-- Written by `python -m tools.docs` from `topics/access.py`. Do not edit. -->

On a cluster with an authorizer each role needs the rights below, and no other. `D` is a destination, `A` is `application.id`. `uow acl show ROLE` prints them for
the destinations in `uow.toml`, `--json` for programs, and with `--principal User:NAME` as commands for `kafka-acls`:

```sh
uow acl show producer reader --group invoicing
uow acl show worker --principal User:megazon-worker
uow acl show producer --principal User:megazon-shop --client shop-
```

READ and WRITE imply DESCRIBE, and whoever may write to any topic may do so idempotently. A test gives each role these rights alone, and then each time all but
one: it runs with all of them, and fails without any of them (`tests/broker/test_access.py`). The roles `router`, `sink` and `audit`, and the rows that begin *with*, are taken from what a broker logged when they ran; no test takes
their rights away yet.

WRITE on `D.commands` is the right to every command, unless [commands are signed](operations.md#signed-commands): then a key gives each program its verbs, all of them to operators, `cancel` to a canceller and to producers of units with `resume=True`,
`fail` and `rule-change` to a router, `expire` to a worker with `--flush-on-stop`; a caller's manifests need none.

What each right lets its holder do to others is in [SECURITY.md](../SECURITY.md). Topics are made by somebody who may create them (`uow topics create`).
"""


def page() -> str:
    """The page."""
    parts = [_HEAD]
    for role, needs in groupby(NEEDS, lambda need: need.role):
        rows = "\n".join(map(_row, needs))
        parts.append(
            f"\n## {role}\n\n{ROLES[role]}\n\n| Resource | Name | Operation | For |\n| --- | --- | --- | --- |\n{rows}\n"
        )
    return "".join(parts)


def _row(need: Need) -> str:
    name = _WORDS.get(need.name, need.name)
    for pattern in ("{D}", "{A}"):
        name = name.replace(pattern, _WORDS[pattern])
    prefix = ", and all that begin so" if need.pattern is Pattern.PREFIXED else ""
    only = f" ({need.only})" if need.only is not Only.ALL else ""
    return f"| {need.resource} | {name}{prefix} | {', '.join(need.operations)} | {need.why}{only} |"
