"""Claims that a record was set aside, and what a ledger says of them."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from uow.schemas.records import LedgerRecord, OffsetRange
from uow.spark_sink.asides import Claim, judged


@pytest.mark.parametrize("seed", range(20))
def test_a_claim_is_proved_only_where_the_ledger_says_that_the_record_was_not_held(seed: int) -> None:
    random = Random(seed)
    cuts = sorted({0, 40, *(random.randrange(1, 40) for _ in range(5))})
    held = {offset: random.random() < 0.5 for offset in range(40)}
    kept = [each for each in pairwise(cuts) if random.random() < 0.7]
    ledger = [
        LedgerRecord(
            1, start, stop, start, 0, 0, tuple(OffsetRange(n, n) for n in range(start, stop) if not held[n]), ()
        )
        for start, stop in kept
    ]
    told = {offset for start, stop in kept for offset in range(start, stop)}
    wanted = {n: Claim.OPEN if n not in told else Claim.REFUTED if held[n] else Claim.PROVED for n in range(40)}
    assert judged(range(40), ledger) == wanted
