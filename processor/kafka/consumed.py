"""The result of a `consume`, sorted in bulk: events apart from records, and records by partition.

Belongs here: reading a message's place and error without a Python call for each. Does not belong here: what an error means
(`source`, `reader`) and what a record says (`uow.processor.core.columns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, groupby
from typing import Any

from uow.processor.engine.ports import Tp


def apart(messages: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Records, and events: messages that carry an error."""
    if not messages:
        return messages, messages
    errors = list(map(type(messages[0]).error, messages))
    if not any(errors):  # never compared with None: KafkaError's comparison leaves an exception behind
        return messages, ()
    return list(compress(messages, [error is None for error in errors])), list(compress(messages, errors))


def by_partition(records: Sequence[Any]) -> Iterator[tuple[Tp, Sequence[Any]]]:
    """Stretches of records of one partition, in the order they came."""
    if not records:
        return
    kind: Any = type(records[0])
    begin = 0
    for place, run in groupby(zip(map(kind.topic, records), map(kind.partition, records), strict=True)):
        end = begin + len(list(run))
        yield Tp(*place), records[begin:end]
        begin = end
