"""The records of other systems that `docs/wire-format.md` shows, read from the page; for tests that send them to a worker."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from uow.topics.policies import AliasFamily

_PAGE = Path(__file__).parents[1] / "docs" / "wire-format.md"


class Sample(NamedTuple):
    """One unit as a system writes it, with other records beside it.

    Attributes:
        name: The sentence above it.
        families: Aliases that its destination accepts.
        records: Headers and value of each record.
    """

    name: str
    families: frozenset[AliasFamily]
    records: Sequence[tuple[list[tuple[str, bytes]], bytes]]

    @property
    def parts(self) -> list[bytes]:
        """Values of the components of its unit, in order."""
        return sorted(value for _, value in self.records if value.startswith(b"part "))

    @property
    def others(self) -> list[bytes]:
        """Values of the records that pass through."""
        return [value for _, value in self.records if not value.startswith(b"part ")]


def samples() -> list[Sample]:
    """All of the page."""
    section = _PAGE.read_text(encoding="utf-8").split("### Records of other systems\n")[1].split("\n## ")[0]
    found = re.findall(
        r"^(`accept_aliases = \[([^\]]+)\]`: [^\n]+)\n\n```json\n(.+?)```", section, re.MULTILINE | re.DOTALL
    )
    return [
        Sample(name, _families(families), [_record(line) for line in lines.splitlines()])
        for name, families, lines in found
    ]


def _families(listed: str) -> frozenset[AliasFamily]:
    return frozenset(AliasFamily(each.strip(' "')) for each in listed.split(","))


def _record(line: str) -> tuple[list[tuple[str, bytes]], bytes]:
    told = json.loads(line)
    return [(name, _bytes(value)) for name, value in told["headers"]], told["value"].encode()


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes.fromhex(value["hex"])
