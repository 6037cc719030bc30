"""Erasing the payload of one held component: what is left of it, and how it is known (B-216). Pure.

What is left are the facts that a unit is made by: number, end mark, ids, times, coordinates, and the headers that this project reads. The value goes, and with it every
header of the application, the producer's digest and, of a component by rule, the key that its record had. The header `uow-erased` takes their place; a component that comes with it is refused (line 5b), so none but a
worker says it.

Belongs here: that form of a component. Does not belong here: when a component may be erased (`command`), and its row of the changelog (`uow.processor.engine.task`).
"""

from __future__ import annotations

from dataclasses import replace

from uow.schemas.component import decode_component
from uow.schemas.records import ComponentRecord
from uow.topics.headers import DIGEST, ERASED, ORIGIN_KEY, Reading

_NAME = ERASED.encode()
_OF_SENDER = frozenset({DIGEST, ORIGIN_KEY})


def without_payload(component: ComponentRecord, command_id: bytes, reading: Reading) -> ComponentRecord:
    """The rest of a component, with the id of the command that erased it."""
    kept = [pair for pair in component.headers if not reading.is_user_header(pair[0]) and pair[0] not in _OF_SENDER]
    return replace(component, value=None, headers=(*kept, (ERASED, command_id)))


def is_erased(body: bytes) -> bool:
    """True for the Avro body of such a component."""
    return _NAME in body and any(name == ERASED and value is not None for name, value in decode_component(body).headers)
