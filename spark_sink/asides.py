"""The proof that a record was set aside, as `D.rejected` claims: whoever may write there could say so, and hide a missing unit behind it.

The ledger, which the worker alone writes, says of every offset whether its record was held. One that was held was not set aside. Of one that would not have been held anyway (a
duplicate, a plain record, one of another partition) it proves nothing: such a claim is believed.

Belongs here: that proof. Does not belong here: what follows for the units of such records (`uow.spark_sink.recompute`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from enum import StrEnum
from itertools import chain

from uow.schemas.codec import decode
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import LedgerRecord
from uow.spark_sink.kafka import Cluster
from uow.spark_sink.partition_log import PartitionLog


class Claim(StrEnum):
    """The answer of the worker's ledger to the claim that a record was set aside."""

    PROVED = "the ledger says that it was not held"
    REFUTED = "the ledger says that the worker held it"
    OPEN = "the ledger does not go back so far"
    UNTOLD = "nothing is ever held there, so the ledger cannot tell"


def judged(claimed: Collection[int], ledger: Iterable[LedgerRecord], *, holds: bool = True) -> dict[int, Claim]:
    """The answer of a partition's ledger to the claims about these offsets. `holds`: the destination holds records at all."""
    if not holds:
        return dict.fromkeys(claimed, Claim.UNTOLD)
    found, offsets = dict.fromkeys(claimed, Claim.OPEN), sorted(claimed)
    for record in ledger:
        told = offsets[bisect_left(offsets, record.from_offset) : bisect_left(offsets, record.to_offset)]
        firsts = [one.first for one in record.not_held] if told else []
        for offset in told:
            before = bisect_right(firsts, offset) - 1
            is_held = before < 0 or record.not_held[before].last < offset
            found[offset] = Claim.REFUTED if is_held else Claim.PROVED
    return found


def read_ledger(cluster: Cluster, topic: str, partition: int) -> Iterator[LedgerRecord]:
    """The ledger of a partition, as far as it is kept."""
    with closing(PartitionLog(cluster, topic, partition)) as log:
        for message in chain.from_iterable(log.rest()):
            try:
                record = decode(message.value() or b"")
            except DecodeError:  # the journal complains about it
                continue
            if isinstance(record, LedgerRecord):
                yield record
