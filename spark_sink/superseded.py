"""Marking the rows of units that others take the place of: the same unit, written to its topic once more (W-127), or a corrected one (B-205).

The same `uow-unit-id` twice in one topic is the same unit, emitted again: because its components were sent again after its id was forgotten,
because a worker's state was deleted and the input was read again, or by `uow rebuild` into a topic of a route. Every such record keeps its row.
The latest, by Kafka's timestamp, is *current*: its `superseded_by` is null; each of the others names the next one. Topics of routes are
independent: a copy in another topic supersedes nothing.

A corrected unit names the one that it takes the place of (`uow-supersedes`). It is the next one of the latest record of that unit, whichever topic routes
send it to.

The units in a table are known by eight bytes each, in memory and beyond a bound in files, so that a batch without a repeated unit, which is
almost every batch, needs no query of the table. The marks follow from the table alone and may be made again at any time.

Belongs here: finding and marking repeated units. Does not belong here: writing rows (`uow.spark_sink.delta_sink`).
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from uow.spark_sink.tables import DeltaTables, Table, despite_others
from uow.topics.headers import SUPERSEDES

FORMER: Final = f"IF(generation > 1, CAST(get(filter(headers, h -> h.name = '{SUPERSEDES}'), 0).value AS STRING), CAST(NULL AS STRING))"
"""SQL for the unit that a corrected unit takes the place of; null for any other."""

IN_MEMORY: Final = 4_000_000
FILES: Final = 256
PIECE: Final = 100_000
"""Number of units whose hashes are read from a table at once."""


class KnownUnits:
    """Hashes of the units in a table, eight bytes each: the latest in memory, the others in files of a temporary folder.

    Args:
        in_memory: Largest number of hashes in memory.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._latest = np.empty(0, np.int64)
        self._older: list[Path] = []
        self._folder: Path | None = None

    def add(self, found: Any) -> bool:
        """Adds units.

        Args:
            found: Array of the hashes of units.

        Returns:
            True if one of them was known, or occurs twice. With a chance of one in many billions, only its hash was known.
        """
        found = np.sort(found)
        is_known = bool((found[1:] == found[:-1]).any()) or any(
            _contains(np.load(path, mmap_mode="r"), found) for path in self._of_range(found)
        )
        # already sorted except for its end, so this is fast
        both = np.sort(np.concatenate([self._latest, found]), kind="stable")
        is_first = np.append(True, both[1:] != both[:-1])[: len(both)]
        self._latest = both[is_first]
        is_known = is_known or not is_first.all()
        if len(self._latest) > self._in_memory:
            self._store()
        return is_known

    def _of_range(self, found: Any) -> Iterator[Path]:
        """The files in which these hashes may be."""
        if self._older and len(found):
            yield from (self._older[number] for number in np.unique(_file_numbers(found)))

    def _store(self) -> None:
        """Merges the hashes in memory into the files, each of which has a range of them."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="uow-sink-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            self._older = [self._folder / f"{number}.npy" for number in range(FILES)]
            for path in self._older:
                np.save(path, np.empty(0, np.int64))
        ends = np.searchsorted(_file_numbers(self._latest), np.arange(FILES), side="right")
        for path, part in zip(self._older, np.split(self._latest, ends[:-1]), strict=True):
            np.save(path, np.unique(np.concatenate([np.load(path), part])))
        self._latest = np.empty(0, np.int64)


def _file_numbers(sorted_hashes: Any) -> Any:
    """The number of the file for each hash, in their order."""
    return (sorted_hashes >> 56) + FILES // 2


def _contains(there: Any, found: Any) -> bool:
    """True if one of the sorted hashes `there` is among those `found`."""
    if not len(there):
        return False
    places = np.searchsorted(there, found)
    return bool((there[np.minimum(places, len(there) - 1)] == found).any())


def hashes_of(topics: Sequence[str], of: str = "") -> Column:
    """The hash of a unit in its topic; and of a corrected unit those of the former one, in each of these topics.

    Args:
        topics: All topics of units.
        of: Prefix of the unit's own columns.
    """
    former = former_hashes(topics, of)
    own = sql.array(own_hash(of))
    return sql.when(former.isNotNull(), sql.concat(own, former)).otherwise(own)


def own_hash(of: str = "") -> Column:
    """The hash of a unit in its topic; `of` as of `hashes_of`."""
    return sql.xxhash64(f"{of}unit_id", "topic")


def former_hashes(topics: Sequence[str], of: str = "") -> Column:
    """The hashes of the unit that a corrected one takes the place of; null for any other. Arguments as of `hashes_of`."""
    former = sql.expr(FORMER.replace("generation", f"{of}generation"))
    return sql.when(former.isNotNull(), sql.array(*(sql.xxhash64(former, sql.lit(topic)) for topic in topics)))


def hashes(hashed: DataFrame) -> Any:
    """The only column of a frame, of hashes, as an array."""
    return hashed.toArrow().column(0).to_numpy()


def hashes_of_text(text: str | None) -> Any:
    """Hashes that SQL has joined with commas, as an array."""
    return np.array(text.split(",") if text else [], np.int64)


def known_units(spark: SparkSession, tables: DeltaTables, topics: Sequence[str]) -> KnownUnits:
    """The units in a destination's tables, which are read piece by piece; `topics` as of `hashes_of`. Marks that are missing because of a crash are made."""
    known = KnownUnits()
    if not tables.is_empty(Table.UNITS):
        current = tables.present(spark, Table.UNITS).rows.where("superseded_by IS NULL")
        hashed = current.select(sql.explode(hashes_of(topics)).alias("hash"))
        repeated = [known.add(piece) for piece in _pieces(hashed, tables.count(spark, Table.UNITS) // PIECE + 1)]
        if any(repeated):
            mark(spark, tables, current)
    return known


def _pieces(hashed: DataFrame, count: int) -> Iterator[Any]:
    """The hashes in so many arrays, one after the other."""
    if count == 1:
        yield hashes(hashed)
        return
    joined = sql.array_join(sql.collect_list("hash"), ",").alias("joined")
    found = hashed.groupBy(sql.expr(f"pmod(hash, {count})")).agg(joined).select("joined").toLocalIterator()
    yield from (hashes_of_text(row.joined) for row in found)


_REPEATED: Final = """
SELECT * FROM (
  SELECT unit_id, topic, partition, offset, superseded_by,
    coalesce(lead(concat_ws('/', topic, partition, offset)) OVER (PARTITION BY unit_id, topic ORDER BY timestamp, partition, offset), c.by) AS by,
    lead(offset) OVER (PARTITION BY unit_id, topic, partition ORDER BY offset) AS until
  FROM {rows} LEFT JOIN {corrections} c ON c.former = unit_id
) WHERE by IS NOT NULL AND superseded_by IS NULL
"""
"""Rows of `units` to mark, with the record that each is superseded by; in shape `consecutive` a unit's records end before `until`."""

_CORRECTIONS: Final = """
SELECT former, min_by(concat_ws('/', topic, partition, offset), struct(timestamp, partition, offset)) AS by
FROM (SELECT *, {former} AS former FROM {rows}) WHERE former IS NOT NULL GROUP BY former
"""
"""The first record of each unit's correction."""

_MARK_COMPONENTS: Final = """
MERGE INTO {table} AS t USING {repeated} AS r
ON t.unit_id = r.unit_id AND t.unit_topic = r.topic AND t.unit_partition = r.partition AND t.unit_offset >= r.offset
  AND (r.until IS NULL OR t.unit_offset < r.until)
WHEN MATCHED AND t.superseded_by IS NULL THEN UPDATE SET superseded_by = r.by
"""
_MARK_UNITS: Final = """
MERGE INTO {table} AS t USING {repeated} AS r
ON t.unit_id = r.unit_id AND t.topic = r.topic AND t.partition = r.partition AND t.offset = r.offset
WHEN MATCHED THEN UPDATE SET superseded_by = r.by
"""


def mark(spark: SparkSession, tables: DeltaTables, units: DataFrame) -> None:
    """Marks the superseded rows of some units and their components. The units come last, since their marks show that the work is done.

    Args:
        spark: The session.
        tables: The tables.
        units: The units, as rows of their table.
    """
    former = sql.expr(FORMER)
    named = units.select("unit_id").unionAll(units.where(former.isNotNull()).select(former.alias("unit_id")))
    every = tables.read(spark, Table.UNITS)
    rows = every.join(named.distinct(), "unit_id", "left_semi")
    corrections = spark.sql(_CORRECTIONS.replace("{former}", FORMER), rows=every)
    repeated = spark.sql(_REPEATED, rows=rows, corrections=corrections).persist()
    try:
        if not repeated.isEmpty():
            for table, statement in ((Table.COMPONENTS, _MARK_COMPONENTS), (Table.UNITS, _MARK_UNITS)):
                name = tables.sql_name(table).replace("{", "{{").replace("}", "}}")
                merge = partial(spark.sql, statement.replace("{table}", name), repeated=repeated)
                despite_others(merge)
    finally:
        repeated.unpersist()
