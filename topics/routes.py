"""The routes of a destination, which decide by a finished unit's headers to which topics it goes (W-98 to W-101). Pure.

Belongs here: routes, and the choice of a unit's topics. Does not belong here: the language of conditions (`uow.topics.selector`), reading
routes from a file (`uow.config.route_settings`), writing units (`uow.processor.engine.routed_units`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from uow.topics.selector import Selector


class RouteMatching(StrEnum):
    """Choice between several routes that accept the same unit (W-100)."""

    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Route:
    """One route of a destination.

    Attributes:
        when: The condition over the unit's headers.
        to: Topic for the units that meet the condition, in place of `D.units`.
    """

    when: Selector
    to: str

    def __str__(self) -> str:
        return f"{self.to} when {self.when.text}"


def topics_of(
    routes: Sequence[Route], matching: RouteMatching, units: str, headers: Iterable[tuple[str, bytes | None]]
) -> list[str]:
    """The topics that a unit goes to, each once, in the order of the routes; only `units` if no route accepts it (W-100)."""
    headers = list(headers)
    accepted = (route.to for route in routes if route.when.accepts(headers))
    if matching is RouteMatching.FIRST:
        return [next(accepted, units)]
    return [*dict.fromkeys(accepted)] or [units]


def unit_topics(routes: Iterable[Route], units: str, targets: Iterable[str] = ()) -> list[str]:
    """Every topic that units of a destination go to, `D.units` first; `targets` are those of its rules."""
    return [*dict.fromkeys([units, *(route.to for route in routes), *targets])]
