"""The records that a load has sent: the ground truth of a proof, one JSON line per record.

Belongs here: the values and their file. Does not belong here: making them (`load`), and comparing (`checker`). Standard library only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]


class SentRecord(NamedTuple):
    """One record handed to Kafka.

    Attributes:
        kind: `component`, `plain` (passes through) or `bad` (refused by its headers alone).
        key: Record key.
        value: Record value.
        headers: All pairs, in order.
        committed: False if its transaction was aborted, and nobody may ever see it.
        refusal: Error class and case of a `bad` one.
        partition: The partition it was sent to; -1: that of its key.
    """

    kind: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    committed: bool = True
    refusal: tuple[str, str] = ("", "")
    partition: int = -1


class GroundTruth(NamedTuple):
    """Everything that was sent; `whole` is the number of components of each unit that was sent completely."""

    sent: list[SentRecord]
    whole: dict[bytes, int]

    def save(self, path: Path) -> None:
        """Writes it to a file, for people or for a check in another process."""
        lines = [json.dumps({"whole": {key.hex(): size for key, size in self.whole.items()}})]
        lines += [json.dumps(_plain(each)) for each in self.sent]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_truth(path: Path) -> GroundTruth:
    """Reads a file that `GroundTruth.save` wrote."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    whole = {bytes.fromhex(key): size for key, size in json.loads(first)["whole"].items()}
    return GroundTruth(list(_sent(lines)), whole)


def _sent(lines: Iterable[str]) -> Iterator[SentRecord]:
    for line in lines:
        row = json.loads(line)
        headers = tuple((name, _bytes(value)) for name, value in row["headers"])
        refusal = (row["refusal"][0], row["refusal"][1])
        yield SentRecord(
            row["kind"],
            _bytes(row["key"]),
            _bytes(row["value"]),
            headers,
            row["committed"],
            refusal,
            row["partition"],
        )


def _plain(sent: SentRecord) -> dict[str, Any]:
    row = sent._asdict()
    row |= {"key": _text(sent.key), "value": _text(sent.value)}
    row["headers"] = [[name, _text(value)] for name, value in sent.headers]
    return row


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
