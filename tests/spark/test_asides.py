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


class Counted(int):
    """An offset that counts how often it is compared."""

    times = 0

    def __lt__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) < other

    def __le__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) > other

    def __ge__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) >= other


def test_many_claims_cost_no_more_than_a_search_for_each_claim_and_each_record_of_the_ledger() -> None:
    count = 4_096
    ledger = [
        LedgerRecord(1, start, start + 2, start, 0, 0, (OffsetRange(start, start),), ()) for start in range(0, count, 2)
    ]
    found = judged([*map(Counted, range(count))], ledger)
    assert [*found.values()] == [Claim.PROVED, Claim.REFUTED] * (count // 2)
    assert Counted.times < 50 * count


def test_where_nothing_is_ever_held_a_ledger_proves_no_claim() -> None:
    ledger = [LedgerRecord(1, 0, 10, 0, 0, 0, (OffsetRange(0, 9),), ())]
    assert judged([1, 11], ledger, holds=False) == {1: Claim.UNTOLD, 11: Claim.UNTOLD}
