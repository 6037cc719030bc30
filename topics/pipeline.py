"""Versions of a pipeline of forwarders, and the barriers between them (S-16). Pure.

Theory of operation. Senders mark their records with the version of the pipeline that they are sent through, and forwarders keep the mark. Before a forwarder is
inserted or taken away, a *barrier* of the next version is sent into every partition of the first topic, and forwarded like any record, to the partition of
the same number. Once it is in every partition of the last topic, nothing of the version before is under way: then senders go over to the next version. So in every
partition that a stage reads, versions never fall, and rise only behind their barrier; where they do otherwise, records that went two ways have met.

Belongs here: that rule. Does not belong here: sending and awaiting barriers (`uow.client.barriers`), and what becomes of a reader (`uow.client.reader`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from uow.topics.headers import BARRIER, PIPELINE_VERSION, decimal

CHANGES: Final = 64
"""Changes of version that are remembered of a partition: a reader that goes back further takes what it finds."""


def number_in(headers: Sequence[tuple[str, bytes | None]], name: str) -> int | None:
    """The number in the first header of a name; None without one, and where it is none."""
    return next((decimal(value or b"") for each, value in headers if each == name), None)


def barrier_in(headers: Sequence[tuple[str, bytes | None]]) -> int | None:
    """The version that a barrier announces; None for any other record."""
    return number_in(headers, BARRIER)


class PipelineVersions:
    """The versions in one partition, as far as they were read."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, int]] = []

    def complaint(self, offset: int, headers: Sequence[tuple[str, bytes | None]]) -> str:
        """The reason why a record cannot be taken in order; empty if it can. A record without a version has version 0.

        Args:
            offset: Of the record. Those from there on are forgotten: they are read again.
            headers: Of the record.
        """
        while self._changes and self._changes[-1][0] >= offset:
            self._changes.pop()
        announced = barrier_in(headers)
        version = announced if announced is not None else number_in(headers, PIPELINE_VERSION) or 0
        before = self._changes[-1][1] if self._changes else None
        if before is not None and version < before:
            return f"pipeline version {version} behind version {before}: it came another way than the records before it"
        if before is not None and version > before and announced is None:
            return f"pipeline version {version} behind version {before}, and no barrier between them: drain the pipeline first"
        if version != before:
            self._changes = [*self._changes, (offset, version)][-CHANGES:]
        return ""
