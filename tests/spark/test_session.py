"""The session itself: Kafka, Delta, the right Python, and nothing left beside the user's files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Producer

from tests.conftest import QUIET
from tests.kafka_broker import Kafka
from uow.spark_sink.session import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_reads_kafka_and_writes_delta(
    spark: SparkSession, broker: Kafka, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = create_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}, logger=QUIET)
    for n in range(50):
        producer.produce(topic, str(n))
    assert producer.flush(10) == 0
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    table = str(tmp_path / "table")
    source.load().write.format("delta").save(table)
    assert spark.read.format("delta").load(table).count() == 50


def test_python_workers_are_of_this_environment(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    python = udf(lambda _: sys.executable)
    assert [row[0] for row in spark.range(1).select(python("id")).collect()] == [sys.executable]


@pytest.mark.spark
def test_relative_paths_mean_the_users_folder_and_nothing_else_appears_there_or_on_its_output(tmp_path: Path) -> None:
    code = "from uow.spark_sink.delta_sink import settings; from uow.spark_sink.session import session\n"
    code += "spark = session('probe', settings=settings(is_short=True)); spark.range(3).write.parquet('written')\n"
    code += "spark.sparkContext._jvm.java.lang.System.out.println('as VACUUM does')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["written"]
    assert done.stdout == ""
    assert done.stderr == "as VACUUM does\n"


def test_spark_starts_with_the_class_archive_that_setup_made(spark: SparkSession) -> None:
    if not class_archive().exists():
        pytest.skip("`make setup` makes it")
    gateway: Any = spark.sparkContext._gateway
    mapped = {each.path for each in psutil.Process(gateway.proc.pid).memory_maps()}
    assert str(class_archive()) in mapped
