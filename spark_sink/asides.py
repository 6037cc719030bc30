"""The proof that a record was set aside, as `D.rejected` claims: whoever may write there could say so, and hide a missing unit behind it.

The ledger, which the worker alone writes, says of every offset whether its record was held. One that was held was not set aside.

Belongs here: that proof. Does not belong here: what follows for the units of such records (`uow.spark_sink.recompute`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum

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


def judged(claimed: Collection[int], ledger: Iterable[LedgerRecord]) -> dict[int, Claim]:
    """The answer of a partition's ledger to the claims about these offsets."""
    found = dict.fromkeys(claimed, Claim.OPEN)
    for record in ledger:
        for offset in claimed:
            if record.from_offset <= offset < record.to_offset:
                is_held = not any(one.first <= offset <= one.last for one in record.not_held)
                found[offset] = Claim.REFUTED if is_held else Claim.PROVED
    return found


def read_ledger(cluster: Cluster, topic: str, partition: int) -> Iterator[LedgerRecord]:
    """The ledger of a partition, as far as it is kept."""
    log = PartitionLog(cluster, topic, partition)
    try:
        for batch in log.rest():
            for message in batch:
                try:
                    record = decode(message.value() or b"")
                except DecodeError:  # the journal complains about it
                    continue
                if isinstance(record, LedgerRecord):
                    yield record
    finally:
        log.close()
