"""Signs commands as a client in another language would, from what `docs/wire-format.md` says. Shares no code with what it tests but the library for Ed25519."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Headers = list[tuple[str, bytes | None]]


def field(raw: bytes | None) -> bytes:
    return struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw


def foreign_bytes(
    destination: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> bytes:
    covered = {name.encode(): raw for name, raw in headers if name.startswith("uow-") and name != "uow-signature"}
    whole = b"uow-command-signature-1\n" + field(destination.encode()) + field(key) + field(value)
    for name in sorted(covered):
        whole += field(name) + field(covered[name])
    return whole


class ForeignSigner:
    """A key with a name."""

    def __init__(self, name: str) -> None:
        self.name, self.private = name, Ed25519PrivateKey.generate()

    @property
    def public(self) -> str:
        return b64encode(self.private.public_key().public_bytes_raw()).decode()

    def sign(
        self,
        destination: str,
        key: bytes | None,
        headers: Headers,
        at: int,
        value: bytes | None = None,
        name: str | None = None,
    ) -> Headers:
        said: Headers = [*headers, ("uow-user-id", (name or self.name).encode()), ("uow-signed-at", str(at).encode())]
        signature = self.private.sign(foreign_bytes(destination, key, value, said))
        return [*said, ("uow-signature", b64encode(signature))]

    def write(self, path: Path) -> Path:
        """Its private key in a file of ours."""
        private = b64encode(self.private.private_bytes_raw()).decode()
        path.write_text(f'name = "{self.name}"\nprivate = "{private}"\n')
        path.chmod(0o600)
        return path
