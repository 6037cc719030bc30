"""`uow-digest`: what a producer says about a whole unit's content (W-212). Standard library only.

Belongs here: how it is computed. Does not belong here: who sends it (`uow.unit`) and who compares (`processor.core.unit`).
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
