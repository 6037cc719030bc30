"""From Kafka records to rows: the table and the columns for each record of a destination's output topics.

The value of a unit or of a record of `D.outcomes` says by its first bytes how it was written (`docs/wire-format.md#framing`): Avro single-object encoding
names its writer's schema by fingerprint, Confluent framing by a registry's id, JSON and XML begin with `{` and `<`. The XML of a unit by rule is a document
for its receiver, and kept as it is: its headers say which unit it is. Each batch is examined once for
the kinds that it has; one `CASE` over them decodes it in one pass, each Avro branch resolving writer to reader.

Belongs here: frames, schemas, the `CASE`, rows by table. Does not belong here: reading Kafka (`uow.spark_sink.kafka`) and writing tables
(`uow.spark_sink.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro

from uow.schemas import codec, formats, framing
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import MAX_RANGES, Source, Unit
from uow.spark_sink.destination_rules import NO_RULES, DestinationRules
from uow.spark_sink.tables import ComponentsForm, Table
from uow.spark_sink.writers import ANSWER, OUTCOME, RECORDS, UNIT, WARNING, WriterOf, WriterSchema, released_writers
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.runs import Run, document_unit, position_of, unit_of

RUN: Final = "run"
"""A record of a unit of shape `consecutive`, decoded as a unit with this one component."""
EARLIER_RUN: Final = "earlier run"
"""The same by a worker of an earlier version, with fewer headers."""
JSON: Final = "json"
XML: Final = "xml"
DOCUMENT: Final = "document"
"""A unit by rule in XML: its headers say what it is, its components cannot be told from the value."""
SINGLE_OBJECT: Final = "single-object"
REGISTRY: Final = "registry"

_FRAME = f"""
CASE WHEN array_contains(headers.name, '{names.POS}')
       THEN IF(array_contains(headers.name, '{names.OPENED_AT}'), '{RUN}', '{EARLIER_RUN}')
     WHEN length(value) > 10 AND startswith(value, X'C301') THEN '{SINGLE_OBJECT}:' || hex(substring(value, 1, 10))
     WHEN length(value) > 5 AND startswith(value, X'00') THEN '{REGISTRY}:' || conv(hex(substring(value, 2, 4)), 16, 10)
     WHEN startswith(value, X'7B') THEN '{JSON}'
     WHEN startswith(value, X'3C') THEN IF(array_contains(headers.name, '{names.RULE}'), '{DOCUMENT}', '{XML}')
     ELSE 'unknown' END
"""
_IS_UNIT = f"""
array_contains(headers, named_struct('name', '{names.KIND}', 'value', CAST('unit' AS BINARY))) AND NOT array_contains(headers.name, '{names.SEQ}')
"""
_EARLIEST, _LATEST = "TIMESTAMP'0001-01-02 00:00:00Z'", "TIMESTAMP'9999-12-31 23:59:59.999Z'"
_IS_TIME = f"{{}} BETWEEN {_EARLIEST} AND {_LATEST}"
_IS_WHOLE_UNIT = f"""
is_valid_utf8(unit.id) AND is_valid_utf8(unit.unit_id) AND is_valid_utf8(unit.destination)
AND {_IS_TIME.format("unit.opened_at")} AND {_IS_TIME.format("unit.closed_at")} AND coalesce({_IS_TIME.format("unit.expires_at")}, true)
AND is_valid_utf8(array_join(unit.components.source.topic, ',')) AND is_valid_utf8(array_join(unit.components.component_id, ','))
AND is_valid_utf8(array_join(flatten(unit.components.headers).name, ','))
AND coalesce(array_min(unit.components.timestamp) >= {_EARLIEST} AND array_max(unit.components.timestamp) <= {_LATEST}, true)
"""
"""Of all components at once: Spark interprets functions with a lambda (`forall`), which took a tenth of a load. Texts with a comma between them are valid
together only if each is."""
_IS_WHOLE: Final[Mapping[str, str]] = {
    UNIT: _IS_WHOLE_UNIT,
    OUTCOME: f"""
is_valid_utf8(outcome.id) AND is_valid_utf8(outcome.unit_id) AND is_valid_utf8(outcome.destination)
AND {_IS_TIME.format("outcome.opened_at")} AND {_IS_TIME.format("outcome.closed_at")} AND coalesce(is_valid_utf8(outcome.rule), true)
AND coalesce(is_valid_utf8(outcome.command_id), true) AND coalesce(is_valid_utf8(outcome.last_arrived.component_id), true)
""",
    ANSWER: f"""
is_valid_utf8(answer.command_id) AND is_valid_utf8(answer.verb) AND is_valid_utf8(answer.id) AND is_valid_utf8(answer.destination)
AND is_valid_utf8(answer.text) AND is_valid_utf8(answer.why) AND coalesce(is_valid_utf8(answer.by), true) AND {_IS_TIME.format("answer.at")}
""",
    WARNING: f"""
is_valid_utf8(deadlinewarning.id) AND is_valid_utf8(deadlinewarning.destination) AND is_valid_utf8(array_join(deadlinewarning.sources, ','))
AND coalesce(is_valid_utf8(deadlinewarning.rule), true) AND {_IS_TIME.format("deadlinewarning.opened_at")}
AND {_IS_TIME.format("deadlinewarning.at")} AND {_IS_TIME.format("deadlinewarning.deadline_at")}
""",
}
"""SQL that is true for a record that was decoded completely. Malformed bytes give a struct of nulls, not a null struct, so the required fields are
checked. Avro's reader accepts any bytes as text, and times that most readers of the tables could not represent."""


def with_frame(records: DataFrame, unit_topics: Sequence[str], outcomes_topic: str) -> DataFrame:
    """Adds `frame`, the encoding of the value of a unit or of a record of `D.outcomes`; null for records that are none.

    On `D.outcomes` there is nothing else, so every record there has a frame.
    """
    return records.withColumn("frame", _frame(unit_topics, outcomes_topic))


def _frame(unit_topics: Sequence[str], outcomes_topic: str) -> Column:
    is_unit = sql.col("topic").isin(*unit_topics) & sql.expr(_IS_UNIT)
    return sql.when(is_unit | (sql.col("topic") == outcomes_topic), sql.expr(_FRAME))


def frames_of(records: DataFrame) -> list[str]:
    """The frames that occur."""
    return sorted(row.frame for row in records.select("frame").where("frame IS NOT NULL").distinct().collect())


class RecordDecoder:
    """Decodes units, outcomes, answers and warnings by their frames.

    Args:
        spark: The session.
        writer_of: Schema by registry id; None when no registry is set.
        destination: Name of the destination.
        rules: Its rules.
    """

    def __init__(
        self, spark: SparkSession, writer_of: WriterOf | None, destination: str, rules: DestinationRules = NO_RULES
    ) -> None:
        self._made = {**_MADE, DOCUMENT: _made(partial(_from_document, destination, rules.others))}
        self._writers = {header.hex().upper(): schema for header, schema in released_writers().items()}
        self._writer_of = writer_of
        self._readers = {record: framing.definition_text(record) for record in RECORDS}
        probe = spark.range(0).select(*(self._from_avro(sql.lit(b""), record, None) for record in RECORDS))
        self._kinds = {record: probe.schema[column_of(record)].dataType for record in RECORDS}

        self.plain = tuple(
            f"{SINGLE_OBJECT}:{header}" for header, schema in self._writers.items() if schema.record == UNIT
        )
        """The frames of units in Avro by released schemas, which need neither a look at the records nor Python."""

    def with_plain_units(self, records: DataFrame, topics: DestinationTopics, unit_topics: Sequence[str]) -> DataFrame:
        """Adds `frame`, `unit`, and `is_plain`, which is true for a unit that is a row as it was decoded: nothing has to be fetched.

        Says of these what `decode` and `with_table` say, in two steps: Spark copies the whole row at each.
        """
        frame, body, none = _frame(unit_topics, topics.outcomes), sql.expr("substring(value, 11)"), sql.lit(None)
        unit = none.cast(self._kinds[UNIT])
        for name in self.plain:
            decoded = self._from_avro(body, UNIT, self._writers[name.partition(":")[2]])
            unit = sql.when(frame == name, decoded).otherwise(unit)
        is_ours = (sql.col("topic") != topics.outcomes) & (sql.col("unit.destination") == topics.destination)
        is_plain = sql.expr(f"coalesce({_IS_WHOLE[UNIT]}, false)") & is_ours & ~sql.expr(REFERS)
        return records.select("*", frame.alias("frame"), unit.alias("unit")).withColumn("is_plain", is_plain)

    def decode(self, records: DataFrame, frames: Sequence[str]) -> DataFrame:
        """Adds a column for each of `RECORDS`, of which at most one is not null, and `problem`.

        Args:
            records: Records with a `frame`.
            frames: The frames to decode; others are unknown.

        Returns:
            The records; `problem` is the reason why the value can be read as none of them, or null.
        """
        found = self._found(sql.expr(self._unknown()))
        for frame in frames:
            known = self._known(frame)
            if known is not None:
                found = sql.when(sql.col("frame") == frame, known).otherwise(found)
        decoded = records.withColumn("found", sql.when(sql.col("frame").isNotNull(), found)).select("*", "found.*")
        is_whole = sql.expr(" OR ".join(f"coalesce({text}, false)" for text in _IS_WHOLE.values()))
        return decoded.drop("found").withColumn("problem", sql.when(~is_whole, sql.col("problem")))

    def _unknown(self) -> str:
        """SQL for the problem with an unknown frame. There may be as many of these as records, so they get no `CASE` branches of their own."""
        registry = "of the registry is none of ours" if self._writer_of else "names a registry, and none is set"
        return f"""CASE substring_index(frame, ':', 1)
          WHEN '{SINGLE_OBJECT}' THEN concat('no released schema has its fingerprint, ', substring_index(frame, ':', -1))
          WHEN '{REGISTRY}' THEN concat('schema id ', substring_index(frame, ':', -1), ' {registry}')
          ELSE 'its value is neither Avro, JSON nor XML' END"""

    def _known(self, frame: str) -> Column | None:
        """The record, and the problem if it cannot be read; None for an unknown frame."""
        kind, _, name = frame.partition(":")
        if kind in self._made:
            record = sql.struct("key", "value", "headers", "topic", "partition", "offset")
            # Spark calls a Python function for every row of the batch, even inside a CASE
            convert = sql.udf(self._made[kind], "STRUCT<body: BINARY, problem: STRING>", useArrow=False)
            made = convert(sql.when(sql.col("frame") == frame, record))
            return self._found(sql.coalesce(made["problem"], _broken(kind, UNIT)), UNIT, made["body"])
        if kind == SINGLE_OBJECT:
            body, writer = sql.expr("substring(value, 11)"), self._writers.get(name)
        else:
            body = sql.expr("substring(value, 6)")
            writer = self._writer_of(int(name)) if kind == REGISTRY and self._writer_of is not None else None
        return None if writer is None else self._found(_broken(kind, writer.record), writer.record, body, writer)

    def _found(
        self, problem: Column, record: str = "", body: Column | None = None, writer: WriterSchema | None = None
    ) -> Column:
        """A struct of a column for each of `RECORDS`, and `problem`; all but `record` are null, which is decoded from `body`."""
        columns = [
            sql.lit(None).cast(kind).alias(column_of(each))
            if each != record or body is None
            else self._from_avro(body, each, writer)
            for each, kind in self._kinds.items()
        ]
        return sql.struct(*columns, problem.alias("problem"))

    def _from_avro(self, body: Column, record: str, writer: WriterSchema | None) -> Column:
        reader = self._readers[record]
        options = {"mode": "PERMISSIVE", "avroSchema": reader}
        return from_avro(body, reader if writer is None else writer.text, options).alias(column_of(record))


def column_of(record: str) -> str:
    """The column that a decoded record is in, by the record's name."""
    return record.lower()


def _broken(kind: str, record: str) -> Column:
    return sql.lit(f"{kind} bytes that are no {record}")


def _made(unit: Callable[[Any], Unit]) -> Callable[[Any], tuple[bytes | None, str | None]]:
    """From a record to its unit's Avro body, or the reason why there is none. No input can make the batch fail."""

    def make(record: Any) -> tuple[bytes | None, str | None]:
        if record is None:
            return None, None
        try:
            made = unit(record)
            _check_ints(made)
            return codec.encode(made), None
        except DecodeError as error:
            return None, str(error)
        except (ValueError, OverflowError, RecursionError) as error:
            return None, f"{type(error).__name__}: {error}"[:_TOLD_CHARS]

    return make


_TOLD_CHARS: Final = 500


def _check_ints(unit: Unit) -> None:
    """Raises `OverflowError` for a number that Avro's readers would truncate to its lower bits."""
    bounds = [number for gap in unit.missing for number in (gap.first, gap.last)]
    parts = [number for part in unit.components for number in (part.seq, part.source.partition)]
    if not all(-(2**31) <= number < 2**31 for number in (unit.count, *bounds, *parts)):
        raise OverflowError("a number is too large for an int")


def _from_run(record: Any) -> Unit:
    """The unit of a run's record, with its one component; its number is 0 if the headers of an earlier version do not give it."""
    headers = _headers_of(record)
    key, value = (None if each is None else bytes(each) for each in (record.key, record.value))
    position, _ = position_of(headers) or (1, 1)
    unit = unit_of(headers, "", 0)
    here = Source(record.topic, record.partition, record.offset)
    component = Run(unit, record.offset, position - 1).take(headers, key, value, 0, here)
    is_complete = names.OPENED_AT in dict(headers)
    is_bounded = position > 1 and len(unit.missing) == MAX_RANGES and component.seq > unit.missing[-1].first
    return replace(unit, components=(replace(component, seq=0) if is_bounded and not is_complete else component,))


def _headers_of(record: Any) -> list[tuple[str, bytes | None]]:
    return [(header.name, None if header.value is None else bytes(header.value)) for header in record.headers]


def _from_document(destination: str, others: Collection[str], record: Any) -> Unit:
    """The unit of a document, without components; its destination is empty where its rule is of another one."""
    headers = _headers_of(record)
    rule = (dict(headers)[names.RULE] or b"").decode("utf-8", "replace")
    return document_unit(headers, "" if rule.partition("/")[0] in others else destination)


_MADE: Final[Mapping[str, Callable[[Any], tuple[bytes | None, str | None]]]] = {
    RUN: _made(_from_run),
    EARLIER_RUN: _made(_from_run),
    JSON: _made(lambda record: formats.from_json(bytes(record.value))),
    XML: _made(lambda record: formats.from_xml(bytes(record.value))),
}
"""Functions that convert other encodings into Avro, so that all units become columns in the same way."""


REFERS: Final = "array_max(unit.components.reference.length) IS NOT NULL"
"""SQL that is true for a unit with components left in `D.components` (W-117)."""


def plain_units(decoded: DataFrame) -> DataFrame:
    """The plain units of `RecordDecoder.with_plain_units`, as `with_table` gives them.

    Their values are no documents, and need not be copied. Where a constant decides a branch, Spark leaves it out.
    """
    constants = {"frame": sql.lit(SINGLE_OBJECT), "goes_to": sql.lit(Table.UNITS.value)}
    return decoded.where("is_plain").withColumns({**constants, "value": sql.lit(None).cast("binary")})


def with_components(decoded: DataFrame, fetch: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Adds key, value and headers to units of shape `reference`; if a component is missing or a different one, `problem` says which.

    Args:
        decoded: Records with `unit`, `problem` and `goes_to`.
        fetch: Reads the records of `D.components` at the coordinates in a frame's `source`, as far as they exist.
    """
    place = ("topic", "partition", "offset")
    ours = decoded.where((sql.col("goes_to") == Table.UNITS.value) & sql.expr(REFERS))
    parts = ours.select(*place, sql.posexplode("unit.components").alias("index", "c"))
    parts = parts.withColumn("source", sql.col("c.source"))
    there = fetch(parts).select(
        sql.struct("topic", "partition", "offset").alias("source"),
        *(sql.col(name).alias(f"its_{name}") for name in ("key", "value", "headers", "timestamp")),
    )
    is_it = "(its_timestamp <=> c.timestamp AND coalesce(length(its_value), -1) <=> c.reference.length)"
    component = """named_struct('seq', c.seq, 'end', c.end, 'component_id', c.component_id, 'key', its_key, 'value', its_value,
      'headers', its_headers, 'timestamp', c.timestamp, 'source', c.source, 'reference', c.reference)"""
    problem = "concat('component ', c.seq, ' is not, or no longer, at ', concat_ws('/', source.topic, source.partition, source.offset))"
    found = (
        parts.join(there, "source", "left")
        .groupBy(*place)
        .agg(
            sql.expr(f"min_by({problem}, index) FILTER (WHERE NOT {is_it})").alias("lacking"),
            sql.expr(f"transform(array_sort(collect_list(struct(index, {component} AS c))), p -> p.c)").alias("parts"),
        )
    )
    unit = sql.when(sql.col("parts").isNull(), sql.col("unit")).otherwise(
        sql.col("unit").withField("components", sql.col("parts"))
    )
    whole = decoded.join(found, [*place], "left").withColumn("unit", unit)
    return whole.withColumn("problem", sql.coalesce("problem", "lacking")).drop("lacking", "parts")


def with_table(decoded: DataFrame, topics: DestinationTopics, unit_topics: Sequence[str]) -> DataFrame:
    """Adds `goes_to`, the one table for each record, so that none is lost and none counted twice (W-216).

    A unit of another destination that was sent on to this one has passed through (W-96): a worker renames its headers, one of an earlier version
    left them unchanged. A record that claims to be a unit and cannot be read is kept in `unreadable`, unchanged, with the reason. So is a record
    on `D.outcomes` that is neither an outcome nor an answer nor a warning of this destination, by its value: its headers prove nothing.
    """
    is_report = sql.col("topic") == topics.outcomes
    destination = sql.coalesce("outcome.destination", "answer.destination", "deadlinewarning.destination")
    misplaced = (
        sql.when(is_report & sql.col("unit").isNotNull(), "a unit, where only outcomes, answers and warnings belong")
        .when(
            is_report & (destination != topics.destination), sql.concat(sql.lit("is about destination "), destination)
        )
        .when(~is_report & sql.col("unit").isNull(), "a record of an outcomes topic, where only units belong")
    )
    problem = sql.when(sql.col("frame").isNotNull(), sql.coalesce("problem", misplaced))
    chosen = (
        sql.when(~sql.col("topic").isin(*unit_topics, topics.outcomes), Table.REJECTED.value)
        .when(sql.col("frame").isNull(), Table.PASSED.value)
        .when(sql.col("problem").isNotNull(), Table.UNREADABLE.value)
        .when(sql.col("outcome").isNotNull(), Table.OUTCOMES.value)
        .when(sql.col("answer").isNotNull(), Table.ANSWERS.value)
        .when(sql.col("deadlinewarning").isNotNull(), Table.WARNINGS.value)
        .when(sql.col("unit.destination") != topics.destination, Table.PASSED.value)
        .otherwise(Table.UNITS.value)
    )
    return decoded.withColumn("problem", problem).withColumn("goes_to", chosen)


POSITION: Final = f"try_cast(split(CAST(try_element_at(filter(headers, h -> h.name = '{names.POS}'), 1).value AS STRING), '/')[0] AS INT)"
"""Position of a run's record in the run; null for other records."""


def _is_listed() -> Column:
    """True for a unit whose record lists its components: neither one of a run nor a document."""
    return ~sql.col("frame").isin(RUN, EARLIER_RUN, DOCUMENT)


def _is_run() -> Column:
    """True for a record of a unit of shape `consecutive`."""
    return sql.col("frame").isin(RUN, EARLIER_RUN)


_CURRENT: Final = "CAST(NULL AS STRING) AS superseded_by"


def _unless_earlier(name: str) -> Column:
    """A column that is null for a run of an earlier version, whose headers do not give it."""
    return sql.when(sql.col("frame") != EARLIER_RUN, sql.col(name)).alias(name.rpartition(".")[2])


def unit_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `units`."""
    nested = [sql.when(_is_listed(), sql.col("unit.components")).alias("components")]
    rule = header_text(names.RULE)
    is_kept = sql.col("frame").isin(DOCUMENT, JSON) & rule.isNotNull()
    plain = ("unit_id", "id", "destination", "generation", "outcome")
    is_first = ~_is_run() | (sql.expr(POSITION) == 1)
    return routed.where((sql.col("goes_to") == Table.UNITS.value) & is_first).select(
        *(sql.col(f"unit.{name}") for name in plain),
        sql.translate("unit.reason", "_", "-").alias("reason"),
        *map(_unless_earlier, ("unit.opened_at", "unit.closed_at")),
        *(sql.col(f"unit.{name}") for name in ("expires_at", "count")),
        _unless_earlier("unit.bytes"),
        *("unit.missing", "key", "headers", "topic", "partition", "offset", "timestamp"),
        sql.expr(_CURRENT),
        rule.alias("rule"),
        sql.when(is_kept, sql.col("value")).alias("document"),
        *(nested if form is ComponentsForm.NESTED else ()),
    )


def component_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `components`: `position` counts from 1 in the order of the unit."""
    units = routed.where(sql.col("goes_to") == Table.UNITS.value)
    exploded = (units.where(_is_run()) if form is ComponentsForm.NESTED else units).select(
        "frame",
        "unit.unit_id",
        "unit.id",
        "unit.generation",
        sql.col("topic").alias("unit_topic"),
        sql.col("partition").alias("unit_partition"),
        sql.col("offset").alias("unit_offset"),
        sql.coalesce(sql.expr(POSITION), sql.lit(1)).alias("first"),
        sql.posexplode("unit.components").alias("index", "component"),
    )
    return exploded.select(
        "unit_id",
        "id",
        "generation",
        (sql.col("index") + sql.col("first")).cast("int").alias("position"),
        sql.nullif("component.seq", sql.lit(0)).alias("seq"),
        _unless_earlier("component.end"),
        *(sql.col(f"component.{name}") for name in ("component_id", "key", "value", "headers")),
        _unless_earlier("component.timestamp"),
        sql.col("component.source.topic").alias("source_topic"),
        sql.col("component.source.partition").alias("source_partition"),
        sql.col("component.source.offset").alias("source_offset"),
        "unit_topic",
        "unit_partition",
        "unit_offset",
        sql.expr(_CURRENT),
    )


def header_text(name: str) -> Column:
    """The last header with a name, as text; null if there is none or it is not UTF-8.

    The last one, since the worker adds its own headers after those of the record. Records without it are told apart first: Spark interprets functions
    with a lambda.
    """
    last = f"try_element_at(filter(headers, h -> h.name = '{name}'), -1).value"
    return sql.expr(f"IF(array_contains(headers.name, '{name}'), try_validate_utf8(CAST({last} AS STRING)), NULL)")


def rejected_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `rejected`, from `D.rejected` and `D.errors` (W-37, W-71)."""
    source = sql.split(header_text(names.SOURCE), "/")
    return routed.where(sql.col("goes_to") == Table.REJECTED.value).select(
        header_text(names.ERROR_CLASS).alias("error_class"),
        header_text(names.ERROR_CASE).alias("error_case"),
        header_text(names.ERROR_TEXT).alias("error_text"),
        header_text(names.FAILURE_REASON).alias("failure_reason"),
        header_text(names.MISSING).alias("missing"),
        header_text(names.ID).alias("id"),
        sql.try_element_at(source, sql.lit(1)).alias("source_topic"),
        sql.try_element_at(source, sql.lit(2)).try_cast("int").alias("source_partition"),
        sql.try_element_at(source, sql.lit(3)).try_cast("bigint").alias("source_offset"),
        *("key", "value", "headers", "topic", "partition", "offset", "timestamp"),
    )


def outcome_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `outcomes`: closed groups, from `D.outcomes` (W-214)."""
    return routed.where(sql.col("goes_to") == Table.OUTCOMES.value).select(
        *(sql.col(f"outcome.{name}") for name in ("unit_id", "id", "destination", "generation", "outcome")),
        sql.translate("outcome.reason", "_", "-").alias("reason"),
        *(sql.col(f"outcome.{name}") for name in ("opened_at", "closed_at", "count", "bytes", "missing")),
        *(sql.col(f"outcome.{name}") for name in ("rule", "command_id", "last_arrived")),
        *("key", "headers", "topic", "partition", "offset", "timestamp"),
    )


def answer_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `answers`: effects of commands, from `D.outcomes` (W-203)."""
    return routed.where(sql.col("goes_to") == Table.ANSWERS.value).select(
        *(sql.col(f"answer.{name}") for name in ("command_id", "verb", "id", "destination", "done")),
        *(sql.col(f"answer.{name}") for name in ("text", "why", "by", "at")),
        *("key", "headers", "topic", "partition", "offset", "timestamp"),
    )


def warning_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `warnings`: what groups lacked whose time was running out, from `D.outcomes` (B-202)."""
    return routed.where(sql.col("goes_to") == Table.WARNINGS.value).select(
        *(
            sql.col(f"deadlinewarning.{name}")
            for name in ("id", "destination", "generation", "opened_at", "at", "deadline_at")
        ),
        sql.translate("deadlinewarning.reason", "_", "-").alias("reason"),
        *(sql.col(f"deadlinewarning.{name}") for name in ("count", "missing", "sources", "rule")),
        *("key", "headers", "topic", "partition", "offset", "timestamp"),
    )


def unreadable_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `unreadable`: records that are not what they claim or what their topic is for, unchanged, with the reason."""
    return routed.where(sql.col("goes_to") == Table.UNREADABLE.value).select(
        sql.col("problem").alias("reason"),
        header_text(names.ID).alias("id"),
        *("key", "value", "headers", "topic", "partition", "offset", "timestamp"),
    )


def passed_rows(routed: DataFrame, form: ComponentsForm) -> DataFrame:
    """Rows of `passed`: records that are not units of this destination, unchanged (W-121)."""
    return routed.where(sql.col("goes_to") == Table.PASSED.value).select(
        "key", "value", "headers", "topic", "partition", "offset", "timestamp"
    )


ROWS: Final[Mapping[Table, Callable[[DataFrame, ComponentsForm], DataFrame]]] = {
    Table.UNITS: unit_rows,
    Table.COMPONENTS: component_rows,
    Table.REJECTED: rejected_rows,
    Table.OUTCOMES: outcome_rows,
    Table.ANSWERS: answer_rows,
    Table.WARNINGS: warning_rows,
    Table.PASSED: passed_rows,
    Table.UNREADABLE: unreadable_rows,
}
"""Function for the rows of each table, from the result of `with_table` and the form of the components."""


def tables_of(chosen: Iterable[str]) -> list[Table]:
    """The tables that get rows when `goes_to` has these values: components come with their units."""
    found = {Table(name) for name in chosen}
    return [table for table in Table if table in found or (table is Table.COMPONENTS and Table.UNITS in found)]
