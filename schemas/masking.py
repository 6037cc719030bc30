"""Texts without their secrets, for people: settings, complaints, logs. Pure.

A text may hold a secret wherever a URL may: as user, as password, as a value of the query, in its fragment; and behind a name that says so. What is
known to be harmless is shown, everything else in these places is masked: a token under an unknown name is still a token. Where a text can be read in two
ways, as a password with a slash or as a path with an @, more is masked rather than less.

Belongs here: the masking of texts. Does not belong here: which settings are secrets as a whole (`uow.config.settings`).
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "********"
HARMLESS: Final = (
    *("application_name", "connect_timeout", "dbname", "host", "hostaddr", "mode", "port"),
    *("sslcert", "sslmode", "sslrootcert", "target_session_attrs", "uri"),
)
"""Parameters of a URL whose values are shown."""

_NAME: Final = (
    r"(?<![\w.-])(?<!unrecognized )(?<!unexpected )(?<!invalid )"
    r"(?:pass|[\w.-]{0,200}?(?:password|passwd|passphrase|pwd|secret|token|api[._-]?key|access[._-]?key|credential|authorization)[\w.-]*)"
)
_SEPARATOR: Final = r"\\?[\"']?\s*(?:=>|[=:])\s*"
_VALUE: Final = r"(?:\"(?:\\.|[^\"\\])*\"?|'(?:\\.|''|[^'\\])*'?|(?:(?:bearer|basic|digest|negotiate)\s+)?\S+)"
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]{0,40}:/+"
_NO_PORT: Final = r":(?!\d*(?:[/?#\s,]|$))"
_NAMED: Final = rf"(?P<name>(?i:{_NAME}){_SEPARATOR})(?i:{_VALUE})"
_SECRETS: Final = re.compile(
    rf"{_NAMED}"
    rf"|(?P<scheme>{_SCHEME})(?P<rest>(?:[^\s/?#]{{0,999}}@|[^\s/?#@]{{0,999}}{_NO_PORT}[^@\n]{{0,999}}@)?[^\s\"'<>]*)"
    rf"|(?<![^\s\"'(,=/])[^\s/@:\"'(,=]{{1,999}}{_NO_PORT}[^\s@]{{1,999}}(?=@[\w\[])"
)
"""A named secret, a URL, or `user:password@` without a scheme; with bounds, so that no text takes long."""
_WHOLE: Final = re.compile(rf"(?s)((?:[\w.:\[\]-]+,)*)({_SCHEME}|//)(.*)")
_HOST: Final = re.compile(r"(?:[\w.~-]+|\[[0-9A-Fa-f:.%]+\])(?::\d*)?")
_WEB: Final = ("http:", "https:")


def masked(text: str) -> str:
    """A text, such as an error of a library, with `********` for whatever may be a secret in it."""
    return _SECRETS.sub(_secret, text)


def masked_path(text: str) -> str:
    """A path of a file that holds a key, or the mask where it looks like a key, or like such a file: people put it in the wrong place."""
    if _PATH.fullmatch(text):
        return text
    is_key = _KEYS.search(text) or _KEY.fullmatch(text.strip()) or ("." not in text and _LONG.search(text))
    return MASK if is_key else text


_PATH: Final = re.compile(r"(?:/[A-Z]?[a-z0-9_-]{1,38}){2,}")
"""Words between slashes. Fewer than one key in a billion has capitals only behind slashes, and one in hexadecimal has no such short parts."""
_KEYS: Final = re.compile(r"\n|PRIVATE KEY|[\w+/-]{38,}=|(?:[0-9A-Fa-f]{2}[: ]){16}")
_KEY: Final = re.compile(r"[\w+/-]{43}|[0-9A-Fa-f]{64}")
_LONG: Final = re.compile(r"[\w+/-]{40}")
"""Such a path without a dot is rather a key in another spelling."""


def masked_value(text: str) -> str:
    """The same of a value that is a URL as a whole, if it is one: it may have spaces, and its end is the end of the text."""
    found = _WHOLE.fullmatch(text)
    if found is not None:
        return found[1] + _url(found[2], found[3])
    account, at, place = text.rpartition("@")
    if at and (":" in account or re.match(r"[\w.-]+:\d", place)):
        return f"{MASK}@{masked(place)}"
    return masked(text)


def _secret(found: re.Match[str]) -> str:
    if found["name"]:
        return f"{found['name']}{MASK}"
    return _url(found["scheme"], found["rest"]) if found["scheme"] else MASK


def _url(scheme: str, rest: str) -> str:
    """A path keeps its @ only behind a host, and only on the web: databases read a slash as part of a password."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    has_host = _HOST.fullmatch(authority) is not None and ":" not in rest[len(authority) :]
    if "@" in rest and not (scheme.lower().startswith(_WEB) and has_host):
        rest = f"{MASK}@{rest.rpartition('@')[2]}"
    place, cross, fragment = rest.partition("#")
    path, mark, query = re.split(r"([?;]|\Z)", place, maxsplit=1)
    path = re.sub(_NAMED, rf"\g<name>{MASK}", path)
    return f"{scheme}{path}{mark}{re.sub(r'[^&;]+', _parameter, query)}{cross}{MASK if fragment else ''}"


def _parameter(found: re.Match[str]) -> str:
    name, _, value = found[0].partition("=")
    if not value:  # a token, which may end with =
        return MASK
    return f"{name}={value if name.lower() in HARMLESS else MASK}"
