"""The rules of one destination as the jobs of this package need them, as far as they could be read when a job began.

Belongs here: that value. Does not belong here: reading rules (`uow.ops.destination_rules`), and what a row means (`uow.processor.rules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from uow.topics.rules import ResolvedRow


@dataclass(frozen=True, slots=True)
class DestinationRules:
    """The rules of one destination.

    Attributes:
        targets: Topics that its rows and calls send units to, beside `D.units`, of all versions that were ever in force; only those that exist.
        others: Ids of the rules of other destinations, whose units may stand in the same topics.
        rows: Every row that a component was stamped with so far, by the text of `uow-rule`.
        inputs: Inputs of the routers whose rules lead here; only those that exist.
        routed: Every destination that these routers lead to.
    """

    targets: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()
    rows: Mapping[str, ResolvedRow] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    routed: tuple[str, ...] = ()


NO_RULES: Final = DestinationRules()
NONE: Final[Mapping[str, DestinationRules]] = {}
"""The rules by destination where no destination has any."""
