"""Routes in the configuration file: read, and checked against their own and the other destinations (W-98).

Belongs here: every complaint about a route, each with its remedy. Does not belong here: routing (`uow.topics.routes`), the language of
its condition (`uow.topics.selector`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from uow.topics import headers as names
from uow.topics.catalogue import TOPIC_NAME, DestinationTopics, expected, is_topic_name
from uow.topics.headers import Reading
from uow.topics.policies import DestinationPolicy
from uow.topics.routes import Route
from uow.topics.selector import Selector, SelectorError


def read_routes(value: Any) -> tuple[list[Route], list[str]]:
    """The routes in a value of the setting `routes`, and the rules that it breaks.

    Args:
        value: As TOML gave it, a list of tables. A text, as the environment would give it, breaks the rule.
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
        raise ValueError("must have two settings, both texts: when and to")
    to = table["to"]
    if not is_topic_name(to):
        raise ValueError(f"to = {to!r} is not a legal topic name: {TOPIC_NAME}")
    try:
        return Route(Selector(table["when"]), to)
    except SelectorError as error:
        raise ValueError(f"when: {error}") from error


def route_complaints(
    application: str, destinations: Mapping[str, DestinationPolicy]
) -> Iterator[tuple[str, Route, str]]:
    """Mistakes that show only beside other destinations and topics: destination, route, broken rule."""
    owners = {spec.name: name for name in destinations for spec in expected(application, name, DestinationPolicy())}
    lanes: dict[str, str] = {}
    for name, policy in destinations.items():
        units = DestinationTopics(application, name).units
        for route in policy.routes:
            owner = lanes.setdefault(route.to, owners.get(route.to, name))
            if owner != name or (route.to in owners and route.to != units):
                yield (
                    name,
                    route,
                    f"to = {route.to!r} is a topic of destination {owner!r}, and a topic may have only one writer",
                )
            for header in sorted(route.when.names):
                rule = _never_on_a_unit(header, policy)
                if rule:
                    yield name, route, f"when: {header} {rule}"


def _never_on_a_unit(header: str, policy: DestinationPolicy) -> str:
    """The reason why a condition on this header would never be true; empty if it may be."""
    meant = Reading(policy.accept_aliases).names.get(header, header)
    if meant != header:
        return f"is called {meant} on a unit"
    if header.startswith(("uow-", "uoo-")) and header not in names.ON_UNIT:
        return f"is never on a unit; a unit may have {', '.join(sorted(names.ON_UNIT))}"
    return ""
