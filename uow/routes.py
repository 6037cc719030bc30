"""Routes that a file gives: read, and checked against the destination and its neighbours (W-98).

Belongs here: every complaint about a route, each with its remedy. Does not belong here: what a route does (`topics.routes`), the language of
its condition (`topics.selector`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from topics import headers as names
from topics.catalogue import DestinationTopics, expected
from topics.headers import Reading
from topics.policies import DestinationPolicy
from topics.routes import Route
from topics.selector import Selector, SelectorError

_MAX_TOPIC_CHARS: Final = 249
_TOPIC_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def read_routes(value: Any) -> tuple[list[Route], list[str]]:
    """The routes of a value of `routes`, and the rules that it breaks.

    Args:
        value: As TOML gave it, a list of tables. A text of the environment breaks the rule.
    """
    routes: list[Route] = []
    wrong: list[str] = []
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        return routes, ["must be tables in the file, [[destinations.NAME.routes]]"]
    for number, table in enumerate(value, 1):
        try:
            routes.append(_route(table))
        except ValueError as error:
            wrong.append(f"route {number}: {error}")
    return routes, wrong


def _route(table: dict[str, Any]) -> Route:
    if {*table} != {"when", "to"} or not all(isinstance(text, str) for text in table.values()):
        raise ValueError("has two settings, both texts: when and to")
    to = table["to"]
    if not 1 <= len(to) <= _MAX_TOPIC_CHARS or not _TOPIC_CHARACTERS.issuperset(to) or to in (".", ".."):
        raise ValueError(f"to = {to!r} is no topic's name: letters, digits, '.', '_' and '-', 1 to {_MAX_TOPIC_CHARS}")
    try:
        return Route(Selector(table["when"]), to)
    except SelectorError as error:
        raise ValueError(f"when: {error}") from error


def route_complaints(
    application: str, destinations: Mapping[str, DestinationPolicy]
) -> Iterator[tuple[str, Route, str]]:
    """What is wrong with routes as seen from outside: destination, route, rule."""
    owners = {spec.name: name for name in destinations for spec in expected(application, name, DestinationPolicy())}
    lanes: dict[str, str] = {}
    for name, policy in destinations.items():
        units = DestinationTopics(application, name).units
        for route in policy.routes:
            owner = lanes.setdefault(route.to, owners.get(route.to, name))
            if owner != name or (route.to in owners and route.to != units):
                yield name, route, f"to = {route.to!r} is a topic of destination {owner!r}: it has one writer already"
            for header in sorted(route.when.names):
                rule = _never_on_a_unit(header, policy)
                if rule:
                    yield name, route, f"when: {header} {rule}"


def _never_on_a_unit(header: str, policy: DestinationPolicy) -> str:
    """Why a condition over this header would never be true, or nothing."""
    meant = Reading(policy.accept_aliases).names.get(header, header)
    if meant != header:
        return f"stands on a unit as {meant}"
    if header.startswith(("uow-", "uoo-")) and header not in names.ON_UNIT:
        return f"is never on a unit; there are {', '.join(sorted(names.ON_UNIT))}"
    return ""
