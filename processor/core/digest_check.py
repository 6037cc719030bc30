"""Check of a whole unit against the digest that its producer sent along, `uow-digest` (W-212).

Belongs here: the comparison. Does not belong here: how a digest is made (`uow.schemas.digest`), and what becomes of a unit that differs
(`decide`).
"""

from __future__ import annotations

from collections.abc import Mapping

from uow.processor.core.erasure import is_erased
from uow.schemas.claim_check import digest_of
from uow.schemas.component import decode_component
from uow.schemas.digest import UnitDigest
from uow.topics.headers import DIGEST

_NAME = DIGEST.encode()


def agrees(bodies: Mapping[int, bytes]) -> bool:
    """True unless the end component has a digest that was made from other components, and none was erased since. `bodies`: all of a unit, by number."""
    end = bodies[max(bodies)]
    if _NAME not in end:  # most often; a look is a hundredth of reading it
        return True
    said = next((value for name, value in decode_component(end).headers if name == DIGEST), None)
    if said is None:
        return True
    if any(map(is_erased, bodies.values())):  # what it was made from is gone
        return True
    made = UnitDigest()
    for number in sorted(bodies):
        made.add_digest(digest_of(bodies[number]))
    return made.header() == said.lower()
