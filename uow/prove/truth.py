"""What a load has sent: the ground truth of a proof, one JSON line per record.

Belongs here: the values and their file. Does not belong here: making them (`load`), and comparing (`checker`). Standard library only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """One record handed to Kafka.

    Attributes:
        kind: `component`, `plain` (passes through) or `bad` (refused by its headers alone).
        key: Record key.
        value: Record value.
        headers: All pairs, in order.
        committed: False where its transaction was aborted: nobody may ever see it.
        refusal: Class and case of a `bad` one.
        partition: Where it was sent; -1: where its key belongs.
    """

    kind: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    committed: bool = True
    refusal: tuple[str, str] = ("", "")
    partition: int = -1


class Truth(NamedTuple):
    """Everything that was sent; `whole` says how many components each unit has of which all were sent."""

    sent: list[Sent]
    whole: dict[bytes, int]

    def save(self, path: Path) -> None:
        """Writes it down, for a look afterwards or a check in another process."""
        lines = [json.dumps({"whole": {key.hex(): size for key, size in self.whole.items()}})]
        lines += [json.dumps(_plain(each)) for each in self.sent]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_truth(path: Path) -> Truth:
    """Reads what `Truth.save` wrote."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    whole = {bytes.fromhex(key): size for key, size in json.loads(first)["whole"].items()}
    return Truth(list(_sent(lines)), whole)


def _sent(lines: Iterable[str]) -> Iterator[Sent]:
    for line in lines:
        row = json.loads(line)
        headers = tuple((name, _bytes(value)) for name, value in row["headers"])
        refusal = (row["refusal"][0], row["refusal"][1])
        yield Sent(
            row["kind"],
            _bytes(row["key"]),
            _bytes(row["value"]),
            headers,
            row["committed"],
            refusal,
            row["partition"],
        )


def _plain(sent: Sent) -> dict[str, Any]:
    row = sent._asdict()
    row |= {"key": _text(sent.key), "value": _text(sent.value)}
    row["headers"] = [[name, _text(value)] for name, value in sent.headers]
    return row


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
