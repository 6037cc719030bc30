"""Fingerprints of expected rows and of the rows in a table: two numbers of 60 bits of an MD5, combined by exclusive or over all rows of an id.

Equal fingerprints mean equal content, save for a chance of one in 2^120; they are made against accidents, not against somebody who constructs rows to
deceive. Different ones mean that the rows of the id must be compared in detail (`uow.spark_sink.comparison`), which may find no difference, as where
a worker of an earlier version wrote less.

Belongs here: fingerprints in Python, of expected rows, and the same in SQL, of the tables' rows. Does not belong here: what is expected
(`uow.spark_sink.expectations`), and balancing both (`uow.spark_sink.balance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import to_avro

from uow.schemas import framing
from uow.schemas.component import long
from uow.spark_sink.recompute import Row
from uow.topics import headers as names

_BITS: Final = 60
_DIGITS: Final = _BITS // 4


def of_bytes(data: bytes) -> int:
    """The fingerprint of some bytes, as one number of 120 bits."""
    return int.from_bytes(md5(data, usedforsecurity=False).digest()[:15])


def halves(both: int) -> tuple[int, int]:
    """A fingerprint as the two numbers of the columns `a` and `b`."""
    return both >> _BITS, both & (1 << _BITS) - 1


def of_unit(
    group: Row, destination: str, topic: str, bodies: Sequence[bytes] | None = None, *, is_free: bool = False
) -> int:
    """The fingerprint of the row in `units` of a recomputed group.

    Args:
        group: The row of the group.
        destination: Its destination.
        topic: Topic of the unit.
        bodies: Avro bodies of the components in the row, in number order; None if they are no part of it.
        is_free: True if the topic has partitions of its own.
    """
    headers = ",".join(
        f"{name.encode().hex()}={'-' if raw is None else raw.hex()}" for name, raw in group.headers or ()
    ).upper()
    expires = "-" if group.expires_at is None else group.expires_at
    partition = "-" if is_free else group.partition
    document = "-" if group.document is None else group.document.hex()
    text = (
        f"{group.unit_id}/{topic}/{destination}/{group.generation}/{group.outcome}/{group.reason}/{group.opened_at}/{group.closed_at}/"
        f"{expires}/{group.size}/{group.held_bytes}/{group.missing}/{partition}/{(group.key or b'').hex().upper()}/{headers}/{document}"
    )
    return of_bytes(text.encode() if bodies is None else b"%b%b" % (text.encode(), array(bodies)))


def array(bodies: Sequence[bytes]) -> bytes:
    """An Avro array of these items, in one block as Avro's writer makes it."""
    return b"%b%b\0" % (long(len(bodies)), b"".join(bodies)) if bodies else b"\0"


def of_components(group: Row, topic: str, bodies: Sequence[bytes]) -> int:
    """The combined fingerprint of the rows in `components` of a unit.

    Args:
        group: The row of the group.
        topic: Topic of the unit.
        bodies: Avro bodies of the components, in number order.
    """
    combined = 0
    end = f"/{group.generation}/{group.unit_id}/{topic}".encode()
    for position, body in enumerate(bodies, 1):
        combined ^= of_bytes(b"%b%d%b" % (body, position, end))
    return combined


def of_refused(row: Row, topic: str) -> int:
    """The fingerprint of a row in `rejected`."""
    is_rejected = row.fate == "rejected"
    parts = (
        topic,
        row.partition,
        row.offset,
        row.error_class,
        row.error_case,
        None if is_rejected else row.fate,
        None if is_rejected else row.missing,
        (row.content or b"").hex(),
    )
    return of_bytes("/".join("-" if part is None else str(part) for part in parts).encode())


def content(headers: str = "headers", of: str = "") -> str:
    """SQL for a digest of key, value and headers, which distinguishes them from each other and from null.

    Args:
        headers: SQL for the headers.
        of: Prefix of key and value, `a.`.
    """
    pairs = f"transform({headers}, h -> concat(hex(h.name), '=', coalesce(hex(h.value), '-')))"
    parts = (
        f"coalesce(sha2({of}key, 256), '-'), '/', coalesce(sha2({of}value, 256), '-'), '/', array_join({pairs}, ',')"
    )
    return f"unhex(sha2(concat({parts}), 256))"


def _text(*parts: str) -> Column:
    """The parts as text, `-` for null, with a slash between."""
    return sql.expr("concat_ws('/', " + ", ".join(f"coalesce(CAST({part} AS STRING), '-')" for part in parts) + ")")


LACKING: Final = """
array_join(transform(missing, r -> CASE WHEN r.first = r.last THEN CAST(r.first AS STRING) WHEN r.last = 2147483647 THEN concat(r.first, '-')
  ELSE concat(r.first, '-', r.last) END), ',')
"""
"""SQL for the missing numbers of a row in `units`, as text."""

_HEADERS: Final = "array_join(transform(headers, h -> concat(hex(h.name), '=', coalesce(hex(h.value), '-'))), ',')"
"""In capitals: Spark's `lower` asks a library for all languages, which takes a second to load."""


def unit(is_free: Column, *, is_nested: bool = False) -> Column:
    """The bytes of a row in `units`: text, then its components, if they are in it; `is_free` as in `of_unit`."""
    partition = sql.when(~is_free, sql.col("partition").cast("string"))
    before, after = _text(*_UNIT), _text("hex(key)", _HEADERS, "sha2(document, 256)")
    text = sql.concat_ws("/", before, sql.coalesce(partition, sql.lit("-")), after).cast("binary")
    if not is_nested:
        return text
    parts = to_avro(sql.expr(_COMPONENTS), f'{{"type": "array", "items": {framing.definition_text("Component")}}}')
    held = sql.when(sql.expr(_IS_SOUND), parts).otherwise(sql.lit(b"?"))
    return sql.when(sql.col("components").isNull(), text).otherwise(sql.concat(text, held))


_IS_SOUND: Final = """coalesce(NOT (array_contains(components.seq, -1) OR array_contains(CAST(components.end AS ARRAY<INT>), -1)
  OR array_contains(components.timestamp, TIMESTAMP'0001-01-01 00:00:00Z') OR array_contains(components.source.topic, '')
  OR array_contains(components.source.partition, -1) OR array_contains(components.source.offset, -1)
  OR array_contains(flatten(components.headers).name, '\\0')), false)"""
"""SQL that is true for components with everything that Avro needs, as each has that the sink wrote. Of an array with a null nothing says if it contains what
no component has; a function with a lambda (`forall`) would be interpreted."""

_COMPONENTS: Final = """IF(array_max(components.reference.length) IS NULL, components, transform(components, c -> named_struct('seq', c.seq, 'end', c.end,
  'component_id', c.component_id, 'key', c.key, 'value', c.value, 'headers', c.headers, 'timestamp', c.timestamp, 'source', c.source,
  'reference', CAST(NULL AS STRUCT<length: BIGINT, crc32c: BIGINT>))))"""
"""The components as the worker held them: whole, also where the unit's record refers to them."""


_UNIT: Final = (
    *("unit_id", "topic", "destination", "generation", "outcome", "reason", "unix_millis(opened_at)"),
    *("unix_millis(closed_at)", "unix_millis(expires_at)", "count", "bytes", LACKING),
)


_BODY: Final = """named_struct('seq', coalesce(seq, 0), 'end', coalesce(end, false), 'component_id', component_id, 'key', key, 'value', value,
  'headers', transform(headers, h -> named_struct('name', coalesce(h.name, ''), 'value', h.value)),
  'timestamp', coalesce(timestamp, timestamp_millis(0)),
  'source', named_struct('topic', coalesce(source_topic, ''), 'partition', coalesce(source_partition, 0), 'offset', coalesce(source_offset, 0)),
  'reference', CAST(NULL AS STRUCT<length: BIGINT, crc32c: BIGINT>))"""


def component() -> Column:
    """The bytes of a row in `components`: those that the worker held, then place and unit."""
    end = _text("generation", "unit_id", "unit_topic")
    after = sql.concat(sql.coalesce(sql.col("position"), sql.lit(0)).cast("string"), sql.lit("/"), end)
    return sql.concat(to_avro(sql.expr(_BODY), framing.definition_text("Component")), after.cast("binary"))


_OWN_HEADERS: Final = f"slice(headers, 1, CAST(size(headers) - array_position(reverse(transform(headers, h -> h.name)), '{names.ERROR_CLASS}') AS INT))"
"""SQL for the headers that a refused record had before the worker's own."""


def refused(errors_topic: str) -> Column:
    """The text of a row in `rejected`."""
    of_errors = f"IF(topic = '{errors_topic}', missing, NULL)"
    digest = f"lower(hex({content(_OWN_HEADERS)}))"
    return _text(
        *(
            "topic",
            "source_partition",
            "source_offset",
            "error_class",
            "error_case",
            "failure_reason",
            of_errors,
            digest,
        )
    )


def columns(data: Column) -> tuple[Column, Column]:
    """The columns `a` and `b` of a fingerprint.

    Args:
        data: Text or bytes.
    """
    digest = sql.md5(data)
    half = (sql.substring(digest, 1, _DIGITS), sql.substring(digest, 1 + _DIGITS, _DIGITS))
    a, b = (sql.conv(each, 16, 10).cast("bigint") for each in half)
    return a.alias("a"), b.alias("b")
