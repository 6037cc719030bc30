"""`uow sql`: a query over the Delta tables and the views of `uow.spark_sink.views`."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import click

from uow.cli.options import json_option, producer_header_option, spark_options, tables_option
from uow.schemas.error_classes import UowError
from uow.terminal.printing import Progress, print_json, print_table, say

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructField

    from uow.spark_sink.folders import Folder
    from uow.spark_sink.session import Place

MAX_LINES = 1_000


@click.command()
@tables_option
@click.argument("text", metavar="[SQL]", required=False)
@click.option(
    "--limit", type=click.IntRange(1), default=MAX_LINES, show_default=True, help="Largest number of rows to print."
)
@producer_header_option
@json_option
@spark_options
def command(root: Folder, place: Place, text: str | None, limit: int, producer_header: str, as_json: bool) -> None:
    """Answer SQL over the tables below DIR, in Spark's dialect. Without it, list the views with the questions that they answer.

    Each table is a view of its name over all destinations, with the destination as its first column: units, components, rejected ...
    """
    from uow.spark_sink.views import VIEWS, register

    if text is None:
        rows = [(view.name, view.question, view.row) for view in VIEWS]
        columns = ("view", "question", "a row is")
        if as_json:
            print_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            print_table(columns, rows)
        return
    from pyspark.errors import PySparkException

    from uow.spark_sink.delta_sink import settings as spark_settings
    from uow.spark_sink.session import session

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # PySpark writes traces of wrong queries
    with Progress("Spark is starting") as progress:
        spark = session("uow sql", settings=spark_settings(is_short=place.is_here), place=place)
        progress.say("reading the tables")
        register(spark, str(root), producer_header=producer_header)
        try:
            names, rows = _rows(spark, text, limit + 1, as_json)
        except PySparkException as error:
            raise UowError(str(error).splitlines()[0]) from error
    if as_json:
        print_json([json.loads(row[0]) for row in rows[:limit]])
    else:
        print_table(names, rows[:limit])
    if len(rows) > limit:
        say(f"uow: there are more rows than {limit}; --limit prints more")


def _rows(spark: SparkSession, text: str, limit: int, as_json: bool) -> tuple[list[str], list[Any]]:
    """Columns, and up to a number of rows: of texts, or of one JSON text each. Bytes are shown as text, and as Base64 within other values."""
    from pyspark.sql import functions as sql

    found = spark.sql(text).limit(limit)
    names = found.columns
    if as_json:
        texts = [sql.to_json(sql.struct("*"), {"ignoreNullFields": "false"})]
    else:
        found = found.toDF(*map(str, range(len(names))))  # a query may give two columns one name
        texts = [*map(_text, found.schema)]
    return names, [tuple(row) for row in found.select(*map(sql.make_valid_utf8, texts)).collect()]


def _text(field: StructField) -> Column:
    """A column as text."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import ArrayType, MapType, StructType

    column = sql.col(f"`{field.name}`")
    return (
        sql.to_json(column) if isinstance(field.dataType, ArrayType | MapType | StructType) else column.cast("string")
    )
