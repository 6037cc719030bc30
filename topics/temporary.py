"""Names of temporary destinations: topics that belong to one connection (R-10). Pure.

The name says who made it and when, so that one whose owner died can be told from one that is in use.

Belongs here: the name. Does not belong here: making and deleting (`uow.client.temporary`).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

PREFIX: Final = "uow-temporary."
HOST_CHARS: Final = 100
"""A topic's name has 249 at most."""
_NAME: Final = re.compile(re.escape(PREFIX) + r"([0-9]{1,15})\.([0-9]{1,10})\.[0-9a-f]{32}-[0-9]{1,9}\.(.+)", re.ASCII)


class Owner(NamedTuple):
    """The process that made a temporary destination.

    Attributes:
        made_at: When, epoch ms.
        pid: Its process id.
        host: Its host, as far as a topic may be named so.
    """

    made_at: int
    pid: int
    host: str


def host_text(host: str) -> str:
    """The name of a host as part of a topic's name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", host)[:HOST_CHARS] or "-"


def temporary_name(owner: Owner, connection_id: str, number: int) -> str:
    """The name of the `number`-th one of a connection."""
    return f"{PREFIX}{owner.made_at}.{owner.pid}.{connection_id}-{number}.{host_text(owner.host)}"


def is_temporary(topic: str) -> bool:
    """True if it is named so."""
    return topic.startswith(PREFIX)


def owner_of(topic: str) -> Owner | None:
    """The owner of a temporary destination; None for any other topic."""
    found = _NAME.fullmatch(topic)
    return None if found is None else Owner(int(found[1]), int(found[2]), found[3])
