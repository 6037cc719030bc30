"""Control for worker and sink: Spark alone groups the components of a topic by `uow-id`, with `transformWithState`, into a Delta table of units.

A unit is emitted once its end mark and all numbers up to it are there. Groups that are open are in RocksDB, with Spark's changelog. Nothing else of a
destination is done: no late components, expiration, refusals, commands or outcomes. Input without repeated components is assumed.

Run it as a process: `python -m bench.spark_grouping BOOTSTRAP TOPIC FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from uow.spark_sink.session import session
from uow.topics import headers as names

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
MOST_RECORDS: Final = 50_000
UNIT: Final = "id STRING, components ARRAY<STRUCT<seq: INT, value: BINARY>>"


class Grouping(StatefulProcessor):
    """State of a group: its components, as a list that is only appended to, and how many there are."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._parts = handle.getListState("parts", "seq INT, value BINARY")
        self._extent = handle.getValueState("extent", "count INT, last INT")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        arrived = pd.concat(list(rows))
        parts = list(zip(arrived["seq"].tolist(), arrived["value"].tolist(), strict=True))
        ends = arrived["seq"][arrived["is_end"]].tolist()
        count, last = self._extent.get() or (0, 0)
        count, last = count + len(parts), max([last, *ends])
        if count != last:
            self._parts.appendList(parts)
            self._extent.update((count, last))
            return
        if count > len(parts):
            parts += self._parts.get()
            self._parts.clear()
            self._extent.clear()
        yield pd.DataFrame({"id": [key[0]], "components": [sorted(parts)]})

    def close(self) -> None:
        pass


def main(bootstrap: str, topic: str, folder: Path) -> None:
    spark = session("grouping by Spark", settings=SETTINGS)
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    options = {"startingOffsets": "earliest", "includeHeaders": "true", "maxOffsetsPerTrigger": str(MOST_RECORDS)}
    header = "CAST(filter(headers, h -> h.key = '{}')[0].value AS STRING)"
    components = (
        records.options(**options)
        .load()
        .select(
            sql.expr(header.format(names.ID)).alias("id"),
            sql.expr(f"CAST({header.format(names.SEQ)} AS INT)").alias("seq"),
            sql.expr(f"{header.format(names.END)} <=> 'true'").alias("is_end"),
            "value",
        )
    )
    units = components.groupBy("id").transformWithStateInPandas(Grouping(), UNIT, "Append", "None")
    query = units.writeStream.format("delta").trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
