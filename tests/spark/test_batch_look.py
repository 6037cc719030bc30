"""`uow.spark_sink.batch_look`: the facts about a batch, and an append that Delta skips, where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from uow.spark_sink import batch_look
from uow.spark_sink.batch_look import BatchLook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_look_finds_the_facts_and_none_if_the_append_is_skipped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_look, "WAIT_S", 5.0)
    unit = "named_struct('unit_id', CAST(id AS STRING), 'generation', 1L, 'closed_at', TIMESTAMP_SECONDS(id)) AS unit"
    headers = "CAST(array() AS ARRAY<STRUCT<name: STRING, value: BINARY>>) AS headers"
    records = spark.range(1, 11).selectExpr(
        "CASE WHEN id > 9 THEN 'odd' ELSE 'plain' END AS frame", "id <= 9 AS is_plain", "'t' AS topic", unit, headers
    )

    def found() -> batch_look.LookFound | None:
        look = BatchLook(records, ["plain"], ["t"])
        rows = look.records.where("is_plain").select("unit.unit_id")
        rows.write.format("delta").mode("append").option("txnAppId", "a").option("txnVersion", 1).save(str(tmp_path))
        return look.get()

    first = found()
    assert first is not None
    assert (first.records, first.encoded, first.plain, first.closed_at) == (10, 9, 9, 9.0)
    assert (len(set(first.hashes.tolist())), first.frames) == (9, ["odd"])
    assert found() is None
    assert spark.read.format("delta").load(str(tmp_path)).count() == 9
