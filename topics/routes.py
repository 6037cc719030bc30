"""Where a finished unit goes: the routes of a destination, asked once per unit, of the unit's own headers (W-98 to W-101). Pure.

Belongs here: what a route is, and which topics a unit goes to. Does not belong here: the language of conditions (`topics.selector`), reading
routes from a file (`uow.routes`), writing units (`processor.engine.routed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topics.selector import Selector


class RouteMatching(StrEnum):
    """What several routes mean that accept the same unit (W-100)."""

    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Route:
    """One rule of a destination.

    Attributes:
        when: The condition over the unit's headers.
        to: Topic of the units that it accepts, in place of `D.units`.
    """

    when: Selector
    to: str

    def __str__(self) -> str:
        return f"{self.to} when {self.when.text}"


def topics_of(
    routes: Sequence[Route], matching: RouteMatching, units: str, headers: Iterable[tuple[str, bytes | None]]
) -> list[str]:
    """The topics that a unit goes to, each once, in the order of the routes; `units` alone where no route accepts it (W-100)."""
    headers = list(headers)
    accepted = (route.to for route in routes if route.when.accepts(headers))
    if matching is RouteMatching.FIRST:
        return [next(accepted, units)]
    return [*dict.fromkeys(accepted)] or [units]


def unit_topics(routes: Iterable[Route], units: str) -> list[str]:
    """Every topic that units of a destination go to, `D.units` first."""
    return [*dict.fromkeys([units, *(route.to for route in routes)])]
