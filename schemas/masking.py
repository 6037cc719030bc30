"""Texts without their secrets, for people: settings, complaints, logs. Pure.

A text may hold a secret wherever a URL may: as user, as password, as a value of the query, in its fragment; and behind a name that says so. What is
known to be harmless is shown, everything else in these places is masked: a token under an unknown name is still a token.

Belongs here: the masking of texts. Does not belong here: which settings are secrets as a whole (`uow.config.settings`).
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "********"
HARMLESS: Final = (
    *("application_name", "connect_timeout", "dbname", "host", "hostaddr", "mode", "options", "port"),
    *("sslcert", "sslmode", "sslrootcert", "target_session_attrs", "uri"),
)
"""Parameters of a URL whose values are shown."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(\S*)")
_NAMED: Final = re.compile(
    r"(?i)\b([\w.-]*(?:password|passwd|pwd|secret|token|api[._-]?key|access[._-]?key|credentials?)[\w.-]*)(\s*[=:]\s*)(?!\s)"
    r"(\"[^\"]*\"|'[^']*'|[^\s&;,]+)"
)
_PARAMETER: Final = re.compile(r"([^&;=]+)=([^&;]*)")


def masked(text: str) -> str:
    """The text with `********` for whatever may be a secret in it."""
    return _NAMED.sub(_named, _URL.sub(_url, text))


def _url(found: re.Match[str]) -> str:
    scheme, rest = found.groups()
    account, at, place = rest.rpartition("@")
    place, cross, fragment = place.partition("#")
    place, mark, query = re.split(r"([?;]|\Z)", place, maxsplit=1)
    user = MASK if at and account else ""
    return f"{scheme}{user}{at}{place}{mark}{_PARAMETER.sub(_parameter, query)}{cross}{MASK if fragment else ''}"


def _parameter(found: re.Match[str]) -> str:
    name, value = found.groups()
    return f"{name}={value if name.lower() in HARMLESS else MASK}"


def _named(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{MASK}"
