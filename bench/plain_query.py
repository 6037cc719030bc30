"""Comparison for the sink: a plain query that writes the records of a topic to Parquet as they are, headers included.

Run it as a process: `python -m bench.plain_query BOOTSTRAP TOPIC FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from uow.spark_sink.session import session

OPTIONS = {"startingOffsets": "earliest", "includeHeaders": "true"}


def main(bootstrap: str, topic: str, folder: Path) -> None:
    spark = session("plain query")
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    query = records.options(**OPTIONS).load().writeStream.format("parquet").trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
