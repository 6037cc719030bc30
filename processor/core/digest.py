"""Whether a whole unit is what its producer sent, where the producer says so by `uow-digest` (W-212).

Belongs here: the comparison. Does not belong here: how a digest is made (`schemas.digest`), and what becomes of a unit that differs
(`decide`).
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.component import decode_component
from schemas.digest import UnitDigest
from schemas.stayed import digest_of
from topics.headers import DIGEST

_NAME = DIGEST.encode()


def agrees(bodies: Mapping[int, bytes]) -> bool:
    """Whether these components, all of a unit by number, are those that the end component's digest was made from; so they are without one."""
    end = bodies[max(bodies)]
    if _NAME not in end:  # most often; a look is a hundredth of reading it
        return True
    said = next((value for name, value in decode_component(end).headers if name == DIGEST), None)
    if said is None:
        return True
    made = UnitDigest()
    for number in sorted(bodies):
        made.add_digest(digest_of(bodies[number]))
    return made.header() == said.lower()
