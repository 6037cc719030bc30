"""`uow-digest`: a producer's checksum over a unit's whole content (W-212). Standard library only.

Belongs here: computing it. Does not belong here: sending it (`uow.client.unit_writer`) and comparing it (`uow.processor.core.virtual_message`).
"""

from __future__ import annotations

from hashlib import sha256


class UnitDigest:
    """SHA-256 over the 32-byte SHA-256 digests of the component values, in number order; null counts as empty."""

    def __init__(self) -> None:
        self._whole = sha256()

    def add(self, value: bytes | None) -> None:
        """Takes the next component's value."""
        self.add_digest(sha256(value or b"").digest())

    def add_digest(self, digest: bytes) -> None:
        """Takes the SHA-256 of the next component's value."""
        self._whole.update(digest)

    def header(self) -> bytes:
        """The header's value: `sha256:` and 64 hexadecimal digits."""
        return b"sha256:" + self._whole.hexdigest().encode()
