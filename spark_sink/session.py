"""A Spark session with Kafka, Avro and Delta: on this machine, on a cluster, or the one of `spark-submit`.

On this machine and with `--master` the JVM is the project's Java with the project's jars, quiet; executors get the jars from the driver. Below
`spark-submit` JVM, master, jars and resources are those of its own options and defaults, and only properties of a session are added.

Belongs here: everything needed to get from an installed Python to a `SparkSession`. Does not belong here: properties that one job needs
(`uow.spark_sink.delta_sink.settings`).
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uow.jvm import archive, jars, java

if TYPE_CHECKING:  # importing pyspark takes long, so it is imported only to start a session
    from pyspark.sql import SparkSession

__all__ = ["SETTINGS", "Place", "session"]

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties").resolve()

NO_FOLDER = Path(__file__).with_name("conf").resolve()
"""Spark's folder of settings, which does not exist: the folder would be on the class path, where a class archive may have only jars."""

JVM_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"
_AT_LAUNCH = (JVM_OPTIONS, "spark.driver.memory")

REDACTED = r"(?i)secret|password|passwd|token|access[.]?key|jaas|keystore|BEGIN.*PRIVATE KEY"
"""Names and values that Spark redacts. Its own expression does not know keys in PEM. Plans that are not yet analyzed are beyond it."""

SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.redaction.regex": REDACTED,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Spark properties of every session."""

_ONE_MACHINE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # for small data on one machine; the defaults are for a cluster
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
}

OBJECT_STORES = {"s3a": "s3"}
"""Schemes of object stores, with the set of jars (`uow/jvm/jars.toml`) that reads and writes there."""

_STDERR = 2

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable of a program that `spark-submit` runs: it has a JVM already."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where jobs run, as the command line says.

    Attributes:
        master: Spark's `--master`; None for this machine, or for the one that `spark-submit` was given.
        conf: Spark properties, which override all others.
        schemes: Schemes of the folders of tables.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    schemes: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """True if this process's JVM does all the work."""
        return SUBMITTED not in os.environ and (self.master is None or self.master.startswith("local"))


def session(
    name: str = "uow",
    *,
    cores: int = 2,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
    place: Place | None = None,
) -> "SparkSession":
    """The process's Spark session, started if there is none yet (5 to 9 seconds).

    The JVM ends with this process. Environment variables that would select another Spark, Java or Python are
    overwritten for this process.

    Args:
        name: the application's name.
        cores: threads for tasks, on this machine.
        memory: the driver's heap.
        settings: Spark properties that override `SETTINGS`.
        place: where it runs; by default on this machine.

    Raises:
        uow.jvm.jars.JarsMissing, uow.jvm.java.JavaMissing: the message says what to install.
    """
    place = place or Place()
    if SUBMITTED in os.environ:
        return _submitted(name, {**SETTINGS, **(settings or {}), **place.conf})
    sets = ("spark", *(OBJECT_STORES[scheme] for scheme in place.schemes if scheme in OBJECT_STORES))
    own, *others = ([str(path) for path in jars.class_path(kind)] for kind in sets)
    paths = [path for kind in others for path in kind]
    given = {"spark.driver.memory": memory, **(settings or {}), **place.conf}
    if more := given.pop("spark.jars", ""):
        paths += more.split(",")
    # the class path, the driver's memory and the like take effect only on the JVM's command line
    at_launch = {name: value for name, value in given.items() if name in _AT_LAUNCH or name in place.conf}
    options = [f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"]
    if place.is_here:
        # not `spark.jars`, whose classes come from a loader of their own, which no archive serves
        at_launch[CLASS_PATH] = os.pathsep.join([*own, *filter(None, [given.get(CLASS_PATH)])])
        options += archive.flags(class_archive())
    else:
        paths = own + paths
        at_launch["spark.master"] = str(place.master)
    at_launch["spark.jars"] = ",".join(paths)
    at_launch[JVM_OPTIONS] = " ".join([*options, given.get(JVM_OPTIONS, "")])
    gateway, scratch = _jvm(tuple(at_launch.items()), place.is_here)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    folders = {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
    common = SETTINGS | _ONE_MACHINE if place.is_here else SETTINGS
    conf = SparkConf().setMaster(place.master or f"local[{cores}]").setAppName(name)
    conf.setAll(list({**folders, **common, **given, **at_launch}.items()))
    if SparkSession.getActiveSession() is None:
        SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _submitted(name: str, settings: Mapping[str, str]) -> "SparkSession":
    """The session of `spark-submit`, whose own options win. Its JVM runs already: properties of the JVM are set there."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    given = SparkConf()
    own: dict[str, Any] = {key: value for key, value in settings.items() if not given.contains(key)}
    of_jvm = own.pop(JVM_OPTIONS, "").split()
    made = SparkSession.builder.appName(name).config(map=own).getOrCreate()
    jvm: Any = made.sparkContext._jvm
    for option in of_jvm:
        if option.startswith("-D"):
            jvm.java.lang.System.setProperty(*option.removeprefix("-D").split("=", 1))
    return made


def class_archive() -> Path:
    """Path of an archive of the JVM's classes on this machine, with which a session starts in half the CPU time."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    of_spark = sorted(Path(found.origin).with_name("jars").glob("*.jar"))
    return archive.archive("spark", [*jars.class_path("spark"), *of_spark])


@cache
def _jvm(at_launch: tuple[tuple[str, str], ...], is_here: bool) -> tuple[Any, str]:
    """The process's JVM, in a temporary folder of its own, which is deleted when the process ends.

    Spark before 4.0.1 makes a folder `artifacts` in the JVM's working folder (SPARK-52396): users would find it beside their
    files, and a read-only folder would fail. Relative paths still mean the folder of this process.
    """
    os.environ.update(
        JAVA_HOME=str(java.spark_home()), PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_CONF_DIR=str(NO_FOLDER)
    )
    if is_here:
        os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    else:  # executors on machines with another layout
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.pop("SPARK_HOME", None)  # another installed Spark would be used instead
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    scratch = tempfile.mkdtemp(prefix="uow-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    launch: Callable[..., Any] = launch_gateway
    # standard output is the command's: Delta's `VACUUM` prints there
    gateway = launch(SparkConf().setAll(list(at_launch)), popen_kwargs={"cwd": scratch, "stdout": _STDERR})
    # one file system was created at launch, and is cached; later ones use the property
    here, hadoop = str(Path.cwd()), gateway.jvm.org.apache.hadoop
    gateway.jvm.java.lang.System.setProperty("user.dir", here)
    hadoop.fs.FileSystem.getLocal(hadoop.conf.Configuration()).setWorkingDirectory(hadoop.fs.Path(here))
    return gateway, scratch
