"""Findings of `uow doctor`, each with its remedy.

Belongs here: the values. Does not belong here: any check (`uow.ops.doctor`, `uow.ops.order_checks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckResult(StrEnum):
    """Result of a check."""

    OK = "ok"
    LOOK = "look"
    """Allowed, but perhaps not wanted."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    Attributes:
        verdict: The result.
        what: The thing that was checked, and its state.
        remedy: The remedy; empty when nothing needs to be done.
    """

    verdict: CheckResult
    what: str
    remedy: str = ""


def ok(what: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(CheckResult.OK, what)
