"""A local Spark session on the project's Java and jars, quiet.

Belongs here: everything needed to get from an installed Python to a `SparkSession` with Kafka, Avro and Delta. On a cluster the
session comes from `spark-submit` instead, and the jobs take it as an argument.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uow.jvm import jars, java

if TYPE_CHECKING:  # importing pyspark takes long, so it is imported only to start a session
    from pyspark.sql import SparkSession

__all__ = ["SETTINGS", "session"]

CONF_FOLDER = Path(__file__).resolve().parent / "conf"

JVM_OPTIONS = "spark.driver.extraJavaOptions"

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # for small data on one machine; the defaults are for a cluster
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def session(
    name: str = "uow",
    *,
    cores: int = 2,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """The process's Spark session, started if there is none yet (5 to 9 seconds).

    The JVM ends with this process. Environment variables that would select another Spark, Java or Python are
    overwritten for this process.

    Args:
        name: the application's name.
        cores: threads for tasks.
        memory: the driver's heap.
        settings: Spark properties that override `SETTINGS`.

    Raises:
        uow.jvm.jars.JarsMissing, uow.jvm.java.JavaMissing: the message says what to install.
    """
    # spark.jars and the driver's memory take effect only on the JVM's command line
    at_launch = {"spark.jars": ",".join(map(str, jars.class_path("spark"))), "spark.driver.memory": memory}
    if settings and JVM_OPTIONS in settings:
        at_launch[JVM_OPTIONS] = settings[JVM_OPTIONS]
    gateway, scratch = _jvm(tuple(at_launch.items()))
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    folders = {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
    conf = SparkConf().setMaster(f"local[{cores}]").setAppName(name)
    conf.setAll(list({**at_launch, **folders, **SETTINGS, **(settings or {})}.items()))
    if SparkSession.getActiveSession() is None:
        SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.config(conf=conf).getOrCreate()


@cache
def _jvm(at_launch: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    """The process's JVM, in a temporary folder of its own, which is deleted when the process ends.

    Spark before 4.0.1 makes a folder `artifacts` in the JVM's working folder (SPARK-52396): users would find it beside their
    files, and a read-only folder would fail. Relative paths still mean the folder of this process.
    """
    os.environ.update(
        JAVA_HOME=str(java.spark_home()),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_CONF_DIR=str(CONF_FOLDER),
    )
    os.environ.pop("SPARK_HOME", None)  # another installed Spark would be used instead
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    scratch = tempfile.mkdtemp(prefix="uow-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    launch: Callable[..., Any] = launch_gateway
    gateway = launch(SparkConf().setAll(list(at_launch)), popen_kwargs={"cwd": scratch})
    # one file system was created at launch, and is cached; later ones use the property
    here, hadoop = str(Path.cwd()), gateway.jvm.org.apache.hadoop
    gateway.jvm.java.lang.System.setProperty("user.dir", here)
    hadoop.fs.FileSystem.getLocal(hadoop.conf.Configuration()).setWorkingDirectory(hadoop.fs.Path(here))
    return gateway, scratch
