"""Views over the Delta tables: the questions that people ask of finished units, each a temporary view of a Spark session.

    from uow.spark_sink.views import register
    register(spark, "/lake")
    spark.sql("SELECT destination, percentile_approx(took_ms, 0.99) FROM completion_times GROUP BY destination").show()

A temporary view needs no metastore. Each table of each destination is first made one view of the table's name, with the destination as its
first column; a table or a column that is not there (yet) is empty or null. The questions are views over these. `docs/questions.md` has them all.

Belongs here: the one place that knows how questions follow from tables. Does not belong here: columns of the tables (`uow.spark_sink.tables`)
and the aggregates of a report (`uow.spark_sink.summary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import MAX_SEQ
from uow.spark_sink.folders import Folder, folder
from uow.topics.headers import PRODUCER_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = ["VIEWS", "View", "destinations", "register"]


@dataclass(frozen=True, slots=True)
class View:
    """A view that answers a question.

    Attributes:
        name: Name of the view.
        question: The question, in words.
        row: The thing that a row of the view stands for.
        text: Its definition in SQL; `{producer_header}` stands for the name of the header that names a component's sender.
        example: A query of it.
    """

    name: str
    question: str
    row: str
    text: str
    example: str


PRODUCER_CHARS: Final = 200
"""A producer's name in a view is cut to this length: a header may have a megabyte."""

_PRODUCER: Final = f"""left(coalesce(
    make_valid_utf8(CAST(try_element_at(filter(headers, h -> h.name = {{producer_header}}), -1).value AS STRING)),
    concat_ws('/', source_topic, source_partition)), {PRODUCER_CHARS})"""

_RANGES: Final = f"""array_join(transform(missing, r -> CASE
    WHEN r.first = r.last THEN CAST(r.first AS STRING)
    WHEN r.last = {MAX_SEQ} THEN concat(r.first, '-')
    ELSE concat(r.first, '-', r.last) END), ',')"""

VIEWS: Final = (
    View(
        "completion_times",
        "How long does a unit take, from its first component to its last?",
        "a unit, as it is current in its topic",
        """\
SELECT destination, unit_id, id, outcome, reason, count AS components, bytes, opened_at, closed_at,
  CASE WHEN closed_at >= opened_at THEN unix_millis(closed_at) - unix_millis(opened_at) END AS took_ms,
  topic, timestamp AS written_at
FROM units
WHERE superseded_by IS NULL""",
        """\
SELECT destination, percentile_approx(took_ms, array(0.5, 0.9, 0.99)) AS p50_p90_p99_ms
FROM completion_times WHERE outcome = 'complete' GROUP BY destination""",
    ),
    View(
        "last_components",
        "Which component comes last, and how long did the rest wait for it alone?",
        "a unit of two or more components: the one that arrived last, by Kafka's timestamp",
        """\
SELECT destination, unit_id, id, unit_topic, seq, position, component_id, producer, source_topic, source_partition,
  timestamp AS arrived_at, unix_millis(timestamp) - unix_millis(before) AS waited_ms
FROM (
  SELECT *, row_number() OVER latest AS nth, lead(timestamp) OVER latest AS before
  FROM (
    SELECT destination, unit_id, id, unit_topic, seq, position, component_id, source_topic, source_partition, source_offset,
      timestamp, {producer} AS producer
    FROM components
    WHERE superseded_by IS NULL AND timestamp IS NOT NULL
  )
  WINDOW latest AS (PARTITION BY destination, unit_topic, unit_id ORDER BY timestamp DESC, source_offset DESC, position DESC)
)
WHERE nth = 1 AND before IS NOT NULL""".replace("{producer}", _PRODUCER),
        """\
SELECT destination, seq, count(*) AS units, sum(waited_ms) / 1000 AS waited_seconds
FROM last_components GROUP BY destination, seq ORDER BY waited_seconds DESC""",
    ),
    View(
        "refusals",
        "Which components were refused, why, and who sent them?",
        "a record of `D.rejected`",
        """\
SELECT destination, error_class, error_case, left(error_text, 1000) AS error_text, {producer} AS producer, id,
  source_topic, source_partition, source_offset, topic, partition, offset, timestamp AS written_at
FROM rejected
WHERE failure_reason IS NULL""".replace("{producer}", _PRODUCER),
        """\
SELECT error_class, producer, count(*) AS records FROM refusals GROUP BY error_class, producer ORDER BY records DESC""",
    ),
    View(
        "incomplete_groups",
        "Which groups did not become whole, and which of their numbers were missing?",
        "a group that expired, was cancelled or failed, or was delivered in part and not corrected",
        """\
WITH told AS (
  SELECT destination, id, generation, outcome, reason, opened_at, closed_at, count AS held, {missing} AS missing, timestamp AS written_at
  FROM (
    SELECT *, row_number() OVER (PARTITION BY destination, unit_id ORDER BY timestamp DESC, partition, offset DESC) AS nth
    FROM outcomes LEFT ANTI JOIN (
      SELECT unit_id FROM units WHERE outcome = 'partial' GROUP BY unit_id HAVING count_if(superseded_by IS NULL) = 0
    ) AS corrected ON corrected.unit_id = outcomes.unit_id
    WHERE outcome <> 'complete'
  )
  WHERE nth = 1
)
SELECT * FROM told
UNION ALL
SELECT destination, id, generation, outcome, reason, opened_at, closed_at, count, {missing}, timestamp
FROM units
WHERE superseded_by IS NULL AND outcome <> 'complete'
  AND NOT EXISTS (SELECT 1 FROM told WHERE told.destination = units.destination AND told.id = units.id AND told.generation = units.generation)
UNION ALL
SELECT destination, id, NULL, failure_reason, error_case, NULL, NULL, CAST(count(*) AS INT), missing, max(timestamp)
FROM rejected
WHERE failure_reason IS NOT NULL AND NOT coalesce(error_text, '') LIKE 'removed: %'
  AND NOT EXISTS (SELECT 1 FROM told WHERE told.destination = rejected.destination AND told.id = rejected.id)
GROUP BY destination, id, failure_reason, error_case, missing""".replace("{missing}", _RANGES),
        """\
SELECT missing, outcome, count(*) AS groups FROM incomplete_groups GROUP BY missing, outcome ORDER BY groups DESC""",
    ),
    View(
        "hourly_volume",
        "How much is delivered, where and when?",
        "an hour of a destination in which units were written",
        """\
SELECT destination, date_trunc('HOUR', timestamp) AS hour, count(*) AS units, sum(count) AS components, sum(bytes) AS bytes
FROM units
WHERE superseded_by IS NULL
GROUP BY destination, date_trunc('HOUR', timestamp)""",
        """\
SELECT * FROM hourly_volume ORDER BY hour DESC, destination LIMIT 24""",
    ),
    View(
        "emitted_again",
        "Which units were written to their topic more than once, or corrected?",
        "a record of a unit that a later record with the same unit id supersedes, or a corrected unit",
        """\
SELECT destination, unit_id, id, outcome, concat_ws('/', topic, partition, offset) AS place, superseded_by, timestamp AS written_at
FROM units
WHERE superseded_by IS NOT NULL""",
        """\
SELECT destination, id, count(*) + 1 AS times FROM emitted_again GROUP BY destination, unit_id, id ORDER BY times DESC""",
    ),
    View(
        "unreadable_records",
        "Which records claim to be what they are not, and why could they not be read?",
        "a record of table `unreadable`",
        """\
SELECT destination, left(reason, 1000) AS reason, id, concat_ws('/', topic, partition, offset) AS place,
  octet_length(value) AS value_bytes, timestamp AS written_at
FROM unreadable""",
        """\
SELECT reason, count(*) AS records FROM unreadable_records GROUP BY reason ORDER BY records DESC""",
    ),
)
"""The questions, in the order of the page. A view may use the tables and nothing else."""


def destinations(root: str | Path) -> list[str]:
    """Destinations that have a table of units below a folder, in alphabetical order.

    Raises:
        StateCorruptedError: There is none.
    """
    found = sorted(path.parent.parent.name for path in folder(root).glob("*/units/_delta_log"))
    if not found:
        raise StateCorruptedError([], f"no tables below {root}", "name the folder that `uow sink --tables` writes to")
    return found


def register(
    spark: SparkSession, root: str | Path, wanted: Sequence[str] = (), *, producer_header: str = PRODUCER_ID
) -> list[str]:
    """Makes the temporary views in a session: one for each table, and `VIEWS`. Views of the same names are replaced.

    The views of tables read the tables as they are when a query runs. New columns and new destinations are seen after another call.

    Args:
        spark: The session, with Delta Lake.
        root: Folder or URI of the tables, as in `uow sink --tables`.
        wanted: Destinations; all that are there, if empty.
        producer_header: Name of the header that names the sender of a component; where it is missing, topic and partition are its name.

    Returns:
        Names of the views.

    Raises:
        StateCorruptedError: There are no tables, or a destination has none.
    """
    there = destinations(root)
    for name in wanted:
        if name not in there:
            raise StateCorruptedError([], f"{name} has no tables below {root}", f"there are: {', '.join(there)}")
    frames = _tables(spark, folder(root), wanted or there)
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    for view in VIEWS:
        # not a marker and `args`: Spark 4.1 and later may leave a marker unbound (apache/spark#55392)
        spark.sql(view.text, producer_header=producer_header).createOrReplaceTempView(view.name)
    return [*frames, *(view.name for view in VIEWS)]


def _tables(spark: SparkSession, root: Folder, wanted: Sequence[str]) -> dict[str, DataFrame]:
    """Each table of some destinations as one frame, by its name."""
    from uow.spark_sink.tables import DeltaTables, Table, columns

    places = [DeltaTables(root, name) for name in wanted]
    found = {}
    for table in Table:
        fields = columns(table).fields
        parts = [
            _with_columns(place.read(spark, table), fields, place.destination)
            for place in places
            if place.is_made(table)
        ]
        found[table.value] = reduce(_union, parts or [_with_columns(spark.range(0).select(), fields, "")])
    return found


def _with_columns(rows: DataFrame, fields: Sequence[StructField], destination: str) -> DataFrame:
    """The destination, then these columns; null where `rows` has no such column."""
    from pyspark.sql import functions as sql

    there = {*rows.columns}
    own = (field for field in fields if field.name != "destination")
    return rows.select(
        sql.lit(destination).alias("destination"),
        *(
            (sql.col(f"`{each.name}`") if each.name in there else sql.lit(None).cast(each.dataType).alias(each.name))
            for each in own
        ),
    )


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other)
