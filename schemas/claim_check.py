"""Components held without their value, which is left in `D.components` (shape `reference`, W-117). Standard library and checksums only.

Such a component has the reference that its unit will list, and instead of the value its SHA-256: enough to classify duplicates
(W-31), to compare a complete unit with its `uow-digest` (W-212), and to verify the value when it is read back. Key and headers are held. A
value so short that this form would not be shorter is held as it is.

Belongs here: this form of a component, written and read. Does not belong here: reading values back (`uow.processor.engine.external_values`), and
the reference alone (`uow.schemas.checksum`).
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Final

from uow.schemas.checksum import reference_to
from uow.schemas.component import (
    decode_component,
    encode_component,
    long,
    value_of,
)
from uow.schemas.records import ComponentRecord, Reference

SHORT_BYTES: Final = 64
"""Values up to this length are held themselves."""
_DIGEST_BYTES: Final = 32


def encode_without_value(component: ComponentRecord) -> tuple[bytes, int]:
    """The component's Avro body as it is held, and the number of bytes by which its value would lengthen it; 0 if the value is in it."""
    value = component.value
    if value is None or len(value) <= SHORT_BYTES:
        return encode_component(component), 0
    reference = reference_to(value)
    held = replace(component, value=sha256(value).digest(), reference=reference)
    return encode_component(held), _stays(reference)


def _stays(reference: Reference) -> int:
    """Length and value, less the digest with its length and the reference, whose first number is the same length."""
    return reference.length - _DIGEST_BYTES - 1 - len(long(reference.crc32c))


def external_bytes(body: bytes) -> int:
    """The number of bytes by which its value would lengthen a held component's Avro body; 0 if the value is in it."""
    reference = _reference(body)
    return 0 if reference is None else _stays(reference)


def is_value(component: ComponentRecord, value: bytes | None) -> bool:
    """True if this is the value of a held component, external or not."""
    return _is(component.value, component.reference, value)


def has_value(body: bytes, value: bytes | None) -> bool:
    """The same for an encoded component."""
    held = value_of(body)
    return _is(held, _reference(body, held), value)


def _is(held: bytes | None, reference: Reference | None, value: bytes | None) -> bool:
    if reference is None:
        return held == value
    return value is not None and len(value) == reference.length and sha256(value).digest() == held


def digest_of(body: bytes) -> bytes:
    """SHA-256 of the value of a held component, null as empty."""
    value = value_of(body)
    return value if value is not None and _reference(body, value) is not None else sha256(value or b"").digest()


def checksum_of(body: bytes) -> int | None:
    """CRC-32C of the value of a held component; None for null."""
    value = value_of(body)
    if value is None:
        return None
    return (_reference(body, value) or reference_to(value)).crc32c


def _reference(body: bytes, value: bytes | None = None) -> Reference | None:
    """The reference of a component with an external value. If `value` is given and cannot be a digest, the body is not read."""
    return decode_component(body).reference if value is None or len(value) == _DIGEST_BYTES else None
