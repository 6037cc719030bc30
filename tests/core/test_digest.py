"""`uow-digest`: a whole unit is what its producer sent, or it fails (W-212)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from tests.core.script import Sent, c, clock, given_up, play, refused, story, unit
from uow.schemas.error_classes import UnitClosedError
from uow.topics.policies import ExpirationPolicy

OF_THREE = b"sha256:4513545c9385ac7f231bf2d2b8463f7e82e01e2a6823e1378702073903503019"
"""Of `flash drive`, null and `book`: `tests/client/test_client_units.py` has it from the client."""


def three(digest: object, first: str = "flash drive", order: Sequence[int] = (1, 2, 3)) -> list[Sent]:
    """A unit of these three values; the end component carries the digest."""
    null = replace(c(2), value=None)
    sent = {1: c(1, value=first), 2: null, 3: c(3, end=True, value="book", digest=digest)}
    return [sent[number] for number in order]


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_unit_that_agrees_with_its_digest_is_delivered_w212(order: tuple[int, ...]) -> None:
    assert play(*three(OF_THREE, order=order)) == [unit(1, 2, 3)]
    assert play(*three(b"sha256:" + OF_THREE[7:].upper(), order=order)) == [unit(1, 2, 3)]


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_unit_with_an_altered_component_fails_w212(order: tuple[int, ...]) -> None:
    played = story(*three(OF_THREE, "flush drive", order))
    assert played.seen == [given_up(number, "failed", "digest") for number in (1, 2, 3)]
    assert [(o.outcome, o.reason, o.count) for o in played.outcomes] == [("failed", "digest", 3)]
    assert (played.counts.failed, played.counts.delivered) == (3, 0)
    assert played.send(c(2, value="late")) == [refused(c(2, value="late"), UnitClosedError, "failed")]


def test_digest_beside_other_special_headers_is_compared_too_w212() -> None:
    first, second, end = three(OF_THREE, "flush drive")
    assert story(first, second, replace(end, headers=[*end.headers, ("uow-deliver-at", b"0")])).counts.failed == 3


def test_unit_with_numbers_missing_is_not_compared_w212() -> None:
    first, _, end = three(b"sha256:" + 64 * b"0")
    played = story(
        first, end, clock(101), incomplete_expiration_ms=100_000, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL
    )
    assert played.seen == [unit(1, 3, outcome="partial", missing="2")]


def test_a_value_that_looks_like_a_digest_header_is_none_w212() -> None:
    assert play(c(1), c(2, end=True, value="uow-digest: sha256:00")) == [unit(1, 2)]
