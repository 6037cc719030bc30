"""Functions that Spark runs over Arrow batches of Kafka records: fates of the input, and closings that the workers recorded.

Belongs here: from batches to rows and back. Does not belong here: the meaning of rows (`uow.spark_sink.recompute`, `uow.spark_sink.comparison`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from uow.processor.core.partition_state import PartitionAddress
from uow.schemas.codec import decode, decode_as
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    Answer,
    LedgerRecord,
    Outcome,
    Record,
)
from uow.schemas.registry import connect
from uow.spark_sink import recompute
from uow.spark_sink.recompute import Arrived, Order, Recomputation
from uow.topics.policies import DestinationPolicy

Batches = Iterable[pa.RecordBatch]
MapBatches = Callable[[Batches], Iterator[pa.RecordBatch]]

ARRIVALS: Final = ("partition", "offset", "at", "key", "value", "headers", "content")
"""Columns that `recomputer` reads."""

CLOSINGS: Final = (
    "topic STRING, partition INT, id STRING, generation BIGINT, outcome STRING, before BIGINT, recorded_at BIGINT, "
    "command_id STRING, command_at BIGINT, place STRING, detail STRING"
)
"""Columns of recorded closed groups; `before` is the input position at that time, null in an `Outcome`.

A command that did something is a row too: outcome `COMMANDED`, no generation, and the key of the command. So is a record that cannot be read:
outcome `UNREADABLE`, no id, its coordinates and the reason.
"""
COMMANDED: Final = "command"
UNREADABLE: Final = "unreadable"

TRANSACTIONS: Final = "partition INT, offset BIGINT, start BIGINT, stop BIGINT, clock BIGINT, commands ARRAY<STRUCT<id: BINARY, at: BIGINT>>"
"""Columns of transactions in the ledger: input positions before and after, the clock after, and the commands decided."""

_FEED_RECORDS: Final = 2_000


def recomputer(
    places: Mapping[int, PartitionAddress], policy: DestinationPolicy, orders: Mapping[int, Sequence[Order]]
) -> MapBatches:
    """Makes the function that computes the fate of each record; its input is one or more complete partitions, each in offset order.

    Args:
        places: Addresses by partition.
        policy: Settings of the destination.
        orders: Commands by partition, in the order in which they were decided.
    """
    schema = arrow_schema(recompute.COLUMNS)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        under_way: dict[int, Recomputation] = {}
        for batch in batches:
            for start in range(0, batch.num_rows, _FEED_RECORDS):
                rows = zip(
                    *(batch.slice(start, _FEED_RECORDS).column(name).to_pylist() for name in ARRIVALS), strict=True
                )
                for partition, group in groupby(rows, itemgetter(0)):
                    if partition not in under_way:
                        under_way[partition] = Recomputation(places[partition], policy, orders.get(partition, ()))
                    yield from _batches(under_way[partition].on_records([_arrived(*row[1:]) for row in group]), schema)
        for recomputation in under_way.values():
            yield from _batches(recomputation.finish(), schema)

    return run


def _arrived(
    offset: int, at: int, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]], content: bytes
) -> Arrived:
    return Arrived(offset, at, key, value, [(header["name"], header["value"]) for header in headers], content)


def closing_reader(ledger_topic: str, registry_url: str) -> MapBatches:
    """Makes the function that reads closed groups and commands from the ledger and from `D.outcomes`.

    Args:
        ledger_topic: Name of the ledger; records of other topics are those of `D.outcomes`.
        registry_url: Schema registry; empty for none.
    """
    schema = arrow_schema(CLOSINGS)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        registry = connect(registry_url) if registry_url else None

        def closings(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
            columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "at", "value"))
            for topic, partition, offset, at, value in zip(*columns, strict=True):
                try:
                    record = decode(value or b"", registry=None if topic == ledger_topic else registry)
                except DecodeError as error:
                    place = f"{topic}/{partition}/{offset}"
                    yield topic, partition, None, None, UNREADABLE, None, at, None, None, place, str(error)
                    continue
                for closing in _closings_of(record):
                    yield topic, partition, *closing[:4], at, *closing[4:], None, None

        for batch in batches:
            yield from _batches(closings(batch), schema)

    return run


def _closings_of(record: Record) -> Iterator[tuple[str, int | None, str, int | None, str | None, int | None]]:
    """Closed groups and commands in a record: id, generation, outcome, input position at that time, command and its time."""
    if isinstance(record, Outcome):
        yield record.id, record.generation, record.outcome.value, None, None, None
    elif isinstance(record, Answer) and record.done:
        yield record.id, None, COMMANDED, None, record.command_id, record.at
    elif isinstance(record, LedgerRecord):
        for one in record.closed:
            yield _text(one.id), one.generation, one.outcome.value, one.closed_before, None, None


def _text(id: bytes) -> str:
    """A group id as text; the ledger has raw bytes, which may be anything."""
    return id.decode("utf-8", "backslashreplace")


def transaction_reader() -> MapBatches:
    """Makes the function that reads transactions from the ledger. Unreadable records are skipped here; `closing_reader` reports them."""
    schema = arrow_schema(TRANSACTIONS)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
            yield from _batches(chain.from_iterable(map(_transaction, *columns)), schema)

    return run


def _transaction(partition: int, offset: int, value: bytes | None) -> Iterator[tuple[Any, ...]]:
    try:
        record = decode_as(LedgerRecord, value or b"")
    except DecodeError:
        return
    commands = [{"id": each.id, "at": each.at} for each in record.commands]
    yield partition, offset, record.from_offset, record.to_offset, record.clock, commands


def arrow_schema(ddl: str) -> pa.Schema:
    """Columns as an Arrow schema. It uses Spark's parser, so it works in the driver only."""
    kind = DataType.fromDDL(ddl)
    assert isinstance(kind, StructType)
    return to_arrow_schema(kind)


def _batches(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows as one Arrow batch; no batch if there are no rows."""
    columns = list(zip(*rows, strict=True))
    if columns:
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
