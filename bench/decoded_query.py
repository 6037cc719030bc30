"""Comparison for the sink: the shortest query that puts units into a Delta table as columns, as somebody would write it by hand.

Spark's own `from_avro`, components nested, Delta's own streaming writer; no check of any record, no other table, no mark of repeated units, no count.
With `tuned` it has the sink's properties of Spark, of Parquet and of the JVM: no sink that decodes units can take less.

Run it as a process: `python -m bench.decoded_query BOOTSTRAP TOPIC FOLDER [tuned]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro

from bench.plain_query import OPTIONS
from uow.schemas.framing import definition_text
from uow.spark_sink.delta_sink import ONE_PASS, settings
from uow.spark_sink.session import session


def main(bootstrap: str, topic: str, folder: Path, *, is_tuned: bool) -> None:
    spark = session("decoded query", settings={**settings(is_short=False), **ONE_PASS} if is_tuned else None)
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    unit = from_avro(sql.expr("substring(value, 11)"), definition_text("Unit")).alias("unit")
    decoded = records.options(**OPTIONS).load().withColumn("unit", unit)
    rows = decoded.select("unit.*", "key", "headers", "topic", "partition", "offset", "timestamp")
    query = rows.writeStream.format("delta").trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), is_tuned="tuned" in sys.argv[4:])
