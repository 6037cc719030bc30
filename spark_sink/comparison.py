"""Comparison of the expected with the actual: each query gives rows of `what, source, id, place, detail`, one for each difference.

Belongs here: the queries. Does not belong here: making their inputs (`uow.spark_sink.audit`).

Inputs by name: `fates` and `groups` (rows of `uow.spark_sink.recompute`, closings settled), the tables, `bounds` (partition, start, stop).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from uow.spark_sink.prints import LACKING
from uow.topics import headers as names
from uow.topics.catalogue import HEADERS_LIMIT, RECORD_LIMIT_BYTES


class DifferenceKind(StrEnum):
    """Kinds of difference."""

    MISSING = "missing"
    DOUBLED = "doubled"
    UNEXPECTED = "unexpected"
    CONTENT = "wrong content"
    ORDER = "wrong order"
    UNACCOUNTED = "unaccounted"
    CLOSING = "unlawful closing"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    CLAIMED = "refuted claim"


SETTLED: Final = """
WITH evidence AS (
  SELECT g.partition, g.id, g.generation, unix_millis(u.timestamp) AS at FROM {rows} g JOIN {units} u ON u.unit_id = g.unit_id AND u.outcome = g.outcome
  WHERE g.kind = 'group' AND g.due IS NOT NULL
  UNION ALL
  SELECT f.partition, f.id, f.generation, unix_millis(x.timestamp)
  FROM {rows} f JOIN {rejected} x ON x.source_partition = f.partition AND x.source_offset = f.offset AND x.failure_reason = f.fate
  WHERE f.kind = 'record' AND f.due IS NOT NULL
),
closed AS (SELECT partition, id, generation, min(at) AS at FROM evidence GROUP BY partition, id, generation)
SELECT r.* EXCEPT (fate, recorded_at), IF(r.due IS NOT NULL AND r.recorded_at IS NULL AND c.at IS NULL, 'open', r.fate) AS fate,
  r.recorded_at IS NULL AND c.at IS NOT NULL AS is_told_by_table, IF(r.due IS NULL, r.recorded_at, least(r.recorded_at, c.at)) AS recorded_at
FROM {rows} r LEFT JOIN closed c ON r.due IS NOT NULL AND c.partition = r.partition AND c.id = r.id AND c.generation = r.generation
"""
"""Rows of the recomputation. A group that only time closes keeps its fate if a record says that it closed (`recorded_at`); otherwise it is open."""

COMPONENTS: Final = """
WITH actual AS (
  SELECT * FROM (
    SELECT *, count(*) OVER w AS n, row_number() OVER o AS k FROM {components}
    WINDOW w AS (PARTITION BY unit_id, unit_topic, source_topic, source_partition, source_offset),
      o AS (PARTITION BY unit_id, unit_topic, source_topic, source_partition, source_offset ORDER BY unit_offset, position)
  ) WHERE k = 1
),
expected AS (SELECT *, explode(topics) AS to_topic FROM {fates} WHERE fate = 'delivered' AND is_listed),
joined AS (
  SELECT e.id AS expected_id, e.offset AS expected_offset, a.source_offset AS actual_offset, a.n, e.position AS expected_position, a.position,
    coalesce(e.id, a.id) AS id,
    concat_ws('/', coalesce(a.source_topic, {topic}), coalesce(e.partition, a.source_partition), coalesce(e.offset, a.source_offset)) AS place,
    concat_ws(', ', IF(e.id <=> a.id, NULL, 'id'), IF(e.generation <=> a.generation, NULL, 'generation'), IF(e.seq <=> a.seq, NULL, 'seq'),
      IF(e.end <=> a.end OR {is_earlier}, NULL, 'end'), IF(e.component_id <=> a.component_id, NULL, 'component_id'),
      IF(IF({is_earlier}, e.content_before, e.content) <=> {content}, NULL, 'key, value or headers'),
      IF(e.at <=> unix_millis(a.timestamp) OR {is_earlier}, NULL, 'timestamp')) AS wrong
  FROM expected e FULL OUTER JOIN actual a
  ON e.unit_id = a.unit_id AND e.to_topic = a.unit_topic AND a.source_topic = {topic} AND e.partition = a.source_partition
    AND e.offset = a.source_offset
)
SELECT CASE WHEN actual_offset IS NULL THEN 'missing' WHEN expected_offset IS NULL THEN 'unexpected' WHEN n > 1 THEN 'doubled'
    WHEN wrong <> '' THEN 'wrong content' ELSE 'wrong order' END AS what,
  'components' AS source, id, place,
  CASE WHEN actual_offset IS NULL THEN 'no row' WHEN expected_offset IS NULL THEN 'belongs to no such unit' WHEN n > 1 THEN concat(n, ' rows')
    WHEN wrong <> '' THEN wrong ELSE concat('position ', position, ', should be ', expected_position) END AS detail
FROM joined
WHERE actual_offset IS NULL OR expected_offset IS NULL OR n > 1 OR wrong <> '' OR NOT expected_position <=> position
""".replace("{is_earlier}", "(e.content_before IS NOT NULL AND a.end IS NULL AND a.timestamp IS NULL)")
"""Components of a run that a worker of an earlier version wrote have neither end mark nor time."""

_IS_NEW: Final = f"(startswith(h.name, '{names.OWN}') OR h.name IN ({', '.join(map(repr, sorted(names.IN_RUN)))}))"
_IS_EARLIER_RUN: Final = (
    f"(exists(a.headers, h -> h.name = '{names.POS}') AND NOT exists(a.headers, h -> h.name = '{names.OPENED_AT}'))"
)
"""SQL that is true for a unit of shape `consecutive` by a worker of an earlier version, with fewer headers."""

UNITS: Final = (
    """
WITH actual AS (
  SELECT *, count(*) OVER (PARTITION BY unit_id, topic) AS n,
    row_number() OVER (PARTITION BY unit_id, topic ORDER BY timestamp, partition, offset) AS k,
    {lacking} AS lacking
  FROM {units}
),
expected AS (
  SELECT *, row_number() OVER (PARTITION BY unit_id, to_topic ORDER BY offset) AS k
  FROM (SELECT *, explode(topics) AS to_topic FROM {groups} WHERE fate = 'delivered')
),
joined AS (
  SELECT e.unit_id AS expected_unit, a.unit_id AS actual_unit, coalesce(e.to_topic, a.topic) AS topic, a.n, a.k,
    coalesce(e.id, a.id) AS id, coalesce(e.unit_id, a.unit_id) AS place,
    max(e.unit_id) OVER (PARTITION BY coalesce(e.unit_id, a.unit_id), coalesce(e.to_topic, a.topic)) AS any_expected,
    concat_ws(', ', IF(e.id <=> a.id, NULL, 'id'), IF(a.destination = {destination}, NULL, 'destination'),
      IF(e.generation <=> a.generation, NULL, 'generation'), IF(e.outcome <=> a.outcome, NULL, 'outcome'), IF(e.reason <=> a.reason, NULL, 'reason'),
      IF(e.opened_at <=> unix_millis(a.opened_at) OR {is_earlier}, NULL, 'opened_at'),
      IF(e.closed_at <=> unix_millis(a.closed_at) OR {is_earlier}, NULL, 'closed_at'),
      IF(e.expires_at <=> unix_millis(a.expires_at), NULL, 'expires_at'), IF(e.size <=> a.count, NULL, 'count'),
      IF(e.held_bytes <=> a.bytes OR {is_earlier}, NULL, 'bytes'), IF(e.missing <=> a.lacking, NULL, 'missing'), IF(e.partition <=> a.partition OR {is_free}, NULL, 'partition'),
      IF(e.document <=> unhex(sha2(a.document, 256)), NULL, 'document'),
      IF(e.key <=> a.key, NULL, 'key'),
      IF(IF({is_earlier}, filter(e.headers, h -> NOT {is_new}), e.headers) <=> a.headers, NULL, 'headers')) AS wrong
  FROM expected e FULL OUTER JOIN actual a ON e.unit_id = a.unit_id AND e.to_topic = a.topic AND e.k = a.k
)
SELECT CASE WHEN actual_unit IS NULL THEN 'missing' WHEN expected_unit IS NOT NULL THEN 'wrong content'
    WHEN any_expected IS NOT NULL THEN 'doubled' ELSE 'unexpected' END AS what,
  'units' AS source, id, place,
  CASE WHEN actual_unit IS NULL THEN concat('no row from ', topic) WHEN expected_unit IS NOT NULL THEN wrong
    WHEN any_expected IS NOT NULL THEN concat('row ', k, ' of ', n, ' from ', topic) ELSE concat('the log gives no such unit in ', topic) END AS detail
FROM joined WHERE actual_unit IS NULL OR expected_unit IS NULL OR wrong <> ''
""".replace("{is_earlier}", _IS_EARLIER_RUN)
    .replace("{is_new}", _IS_NEW)
    .replace("{lacking}", LACKING.strip())
)
"""The same unit may rightly occur more than once, if its components were sent again after its id was forgotten: the k-th one by the log is the
k-th row. Further rows are doubled."""

UNREADABLE: Final = """
SELECT 'unreadable' AS what, 'unreadable' AS source, id, concat_ws('/', topic, partition, offset) AS place, reason AS detail FROM {unreadable}
UNION ALL
SELECT 'unreadable', 'rejected', id, concat_ws('/', topic, partition, offset), error_text FROM {rejected} WHERE topic = {units_topic}
UNION ALL
SELECT 'unreadable', substring_index(l.id, '/', 1), CAST(NULL AS STRING), l.id, l.error_case FROM {lost} l
LEFT ANTI JOIN {unreadable} u ON l.id = concat_ws('/', u.topic, u.partition, u.offset)
"""
"""Records that are not what their topic or their headers claim, each once; the first release kept such units among the rejected ones."""

_IS_LARGE: Final = f"(e.held_bytes > {RECORD_LIMIT_BYTES // 8} OR e.header_count > {HEADERS_LIMIT} - 8)"
_STRIPPED: Final = f"({_IS_LARGE} AND a.key IS NULL AND a.value IS NULL)"
"""A record that is too large together with its error headers is written without key, value and headers (W-115)."""

_SOURCELESS: Final = "IF(source_offset IS NULL, concat_ws('/', partition, offset), NULL)"
"""Distinguishes rows without source coordinates, which are never doubles of each other."""

REFUSED: Final = """
WITH actual AS (
  SELECT * FROM (
    SELECT *, count(*) OVER w AS n, row_number() OVER o AS k FROM {rejected}
    WHERE topic <> {units_topic} AND NOT (topic = {errors_topic} AND exists(headers, h -> h.name = 'uow-unit-id'))
    WINDOW w AS (PARTITION BY topic, source_topic, source_partition, source_offset, {sourceless}),
      o AS (PARTITION BY topic, source_topic, source_partition, source_offset, {sourceless} ORDER BY offset)
  ) WHERE k = 1
),
expected AS (
  SELECT *, IF(fate = 'rejected', {rejected_topic}, {errors_topic}) AS to_topic FROM {fates}
  WHERE fate = 'rejected' OR (fate IN ('expired', 'cancelled', 'failed') AND to_errors)
),
joined AS (
  SELECT e.offset AS expected_offset, a.topic AS actual_topic, a.n, coalesce(e.id, a.id) AS id, coalesce(e.to_topic, a.topic) AS topic,
    IF(e.offset IS NULL AND a.source_offset IS NULL, concat_ws('/', a.topic, a.partition, a.offset),
      concat_ws('/', coalesce(a.source_topic, {topic}), coalesce(e.partition, a.source_partition), coalesce(e.offset, a.source_offset))) AS place,
    concat_ws(', ', IF(e.error_class <=> a.error_class, NULL, concat('class ', e.error_class, ' but ', coalesce(a.error_class, 'none'))),
      IF(e.error_case <=> a.error_case, NULL, concat('case ', e.error_case, ' but ', coalesce(a.error_case, 'none'))),
      IF(IF(e.fate = 'rejected', NULL, e.fate) <=> a.failure_reason, NULL, 'failure reason'),
      IF(e.fate = 'rejected' OR e.missing <=> a.missing, NULL, 'missing numbers'),
      IF(e.content <=> {content} OR {stripped}, NULL, 'key, value or headers')) AS wrong
  FROM expected e FULL OUTER JOIN actual a
  ON e.to_topic = a.topic AND a.source_topic = {topic} AND e.partition = a.source_partition AND e.offset = a.source_offset
)
SELECT CASE WHEN actual_topic IS NULL THEN 'missing' WHEN expected_offset IS NULL THEN 'unexpected' WHEN n > 1 THEN 'doubled' ELSE 'wrong content' END AS what,
  'rejected' AS source, id, place,
  CASE WHEN actual_topic IS NULL THEN concat('no row from ', topic) WHEN expected_offset IS NULL THEN concat('the log gives no reason to be in ', topic)
    WHEN n > 1 THEN concat(n, ' rows from ', topic) ELSE wrong END AS detail
FROM joined WHERE actual_topic IS NULL OR expected_offset IS NULL OR n > 1 OR wrong <> ''
""".replace("{stripped}", _STRIPPED).replace("{sourceless}", _SOURCELESS)

REFUSED_BY_BROKER: Final = """
WITH units AS (
  SELECT DISTINCT f.unit_id FROM {fates} f JOIN {rejected} x
  ON x.topic = {errors_topic} AND x.source_topic = {topic} AND x.source_partition = f.partition AND x.source_offset = f.offset
  LEFT ANTI JOIN {units} u ON u.unit_id = f.unit_id
  WHERE f.fate = 'delivered' AND x.failure_reason = 'failed' AND x.error_class = 'UnitTooLargeError'
),
places AS (
  SELECT unit_id AS place FROM units
  UNION SELECT concat_ws('/', {topic}, f.partition, f.offset) FROM {fates} f JOIN units ON units.unit_id = f.unit_id
)
SELECT IF(p.place IS NULL, d.what, 'refused') AS what, d.source, d.id, d.place,
  IF(p.place IS NULL, d.detail, concat(d.detail, ': a broker refused the unit, which is in ', {errors_topic})) AS detail
FROM {found} d LEFT JOIN places p ON p.place = d.place
"""
"""The differences once more, with those named that are of a unit which a broker refused for what it is: the log does not tell that (decision 94)."""

PASSED: Final = """
WITH actual AS (
  SELECT partition, offset, {content} AS content FROM {passed}
  UNION ALL SELECT partition, offset, {content} AS content FROM {rejected} WHERE topic = {units_topic}
),
a AS (
  SELECT *, row_number() OVER (PARTITION BY partition ORDER BY offset) AS rank, row_number() OVER (PARTITION BY partition, content ORDER BY offset) AS k,
    count(*) OVER (PARTITION BY partition) AS n FROM actual
),
e AS (
  SELECT partition, offset, content, row_number() OVER (PARTITION BY partition ORDER BY offset) AS rank,
    row_number() OVER (PARTITION BY partition, content ORDER BY offset) AS k, count(*) OVER (PARTITION BY partition) AS n
  FROM {fates} WHERE fate = 'passed'
),
joined AS (
  SELECT e.offset AS expected_offset, a.offset AS actual_offset, a.k, e.rank AS expected_rank, a.rank, e.n = a.n AS same_count,
    b.start > 0 AS is_cut,
    IF(e.offset IS NULL, concat_ws('/', {units_topic}, a.partition, a.offset), concat_ws('/', {topic}, e.partition, e.offset)) AS place
  FROM e FULL OUTER JOIN a ON e.partition = a.partition AND e.content = a.content AND e.k = a.k
  LEFT JOIN {bounds} b ON b.partition = coalesce(e.partition, a.partition)
)
SELECT CASE WHEN actual_offset IS NULL THEN 'missing' WHEN expected_offset IS NOT NULL THEN 'wrong order' WHEN k > 1 THEN 'doubled' ELSE 'unexpected' END AS what,
  'passed' AS source, CAST(NULL AS STRING) AS id, place,
  CASE WHEN actual_offset IS NULL THEN 'no row with its key, value and headers' WHEN expected_offset IS NULL THEN 'no such record passed'
    ELSE concat('place ', rank, ' in its partition, should be ', expected_rank) END AS detail
FROM joined
WHERE actual_offset IS NULL OR (expected_offset IS NULL AND NOT {is_moving} AND NOT is_cut) OR (expected_offset IS NOT NULL AND same_count AND NOT is_cut AND rank <> expected_rank)
"""
"""Plain records have no source coordinates: the k-th record with a content in the input is the k-th with it in the output, in the same order (W-121, W-123)."""

REROUTED: Final = """
WITH sent AS (SELECT content, count(*) AS n, min(concat_ws('/', {topic}, partition, offset)) AS place FROM {fates} WHERE fate = 'rerouted' GROUP BY content),
came AS (SELECT content, sum(size) AS n FROM {reroutes} GROUP BY content)
SELECT 'missing' AS what, {topic} AS source, CAST(NULL AS STRING) AS id, s.place, 'was sent on to its partition, and is not there' AS detail
FROM sent s LEFT JOIN came c ON s.content = c.content WHERE s.n > coalesce(c.n, 0)
"""

CLOSINGS: Final = """
SELECT 'unlawful closing' AS what, recorded_in AS source, id, unit_id AS place,
  concat(recorded_outcome, ' is recorded, ', outcome, ' follows from the log') AS detail
FROM {groups} WHERE due IS NULL AND recorded_outcome <> outcome
UNION ALL
SELECT 'unlawful closing', 'closings', id, unit_id, concat(outcome, ' ', due - recorded_at, ' ms before it was due')
FROM {groups} WHERE due IS NOT NULL AND recorded_at < due
"""
"""The recorded outcome of a group must follow from the log, and no group may close by time before it is due (W-70, W-82, W-84)."""


DELIVERED: Final = """
SELECT coalesce(sum(n), 0) AS n FROM (
  SELECT max(n) AS n FROM (
    SELECT source_partition, source_offset, unit_topic, count(*) AS n FROM (
      SELECT c.*, f.unit_id IS NULL OR source_offset = max(source_offset) OVER (PARTITION BY c.unit_id, unit_topic) AS counts
      FROM {components} c LEFT JOIN {corrected} f ON f.unit_id = c.unit_id
    ) c JOIN {bounds} b ON b.partition = c.source_partition
    WHERE counts AND c.source_offset >= b.start AND c.source_offset < b.stop GROUP BY source_partition, source_offset, unit_topic
  ) GROUP BY source_partition, source_offset)
"""
"""Number of delivered records in the tables. A record that routes send to several topics counts once; one that is twice in one topic counts twice. Of a
corrected unit the component that came last counts alone."""


def compare(spark: SparkSession, query: str, **inputs: DataFrame | str | bool) -> DataFrame:
    """Runs a query of this module. Frames are bound as views, texts and truth values as literals; inputs with `content` in their name are SQL."""
    frames: dict[str, Any] = {name: value for name, value in inputs.items() if isinstance(value, DataFrame)}
    for name, value in inputs.items():
        if name == "content":
            query = query.replace("{content}", str(value))
        elif isinstance(value, bool):
            query = query.replace("{" + name + "}", str(value).lower())
        elif isinstance(value, str):
            query = query.replace("{" + name + "}", f"'{value}'")
    return spark.sql(query, **{name: frame for name, frame in frames.items() if "{" + name + "}" in query})
