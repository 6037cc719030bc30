"""One Spark session for all tests of this folder: starting one takes seconds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests.spark.stage import Stage
from uow.topics.policies import DestinationPolicy, HandlingPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from uow.topics.rules import ResolvedRow


def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """A test that meets its limit of time while Java works leaves the answer unread: on that connection the tests behind it would get answers of its own."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if call.excinfo is None or isinstance(call.excinfo.value, Exception) or gateway is None:
        return
    connection = gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close()


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """The session that `uow sink` and `uow audit` use.

    Its JVM ends with this folder's tests: others come after them, and the garbage collector would complain of sockets to it there.
    """
    from pyspark import SparkContext

    from uow.spark_sink.delta_sink import settings
    from uow.spark_sink.session import session

    started = session("tests", settings=settings(is_short=True))
    yield started
    gateway: Any = started.sparkContext._gateway
    started.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
    gc.collect()


@pytest.fixture
def make_stage(spark: SparkSession, broker: Any, tmp_path: Path, unique: str) -> Iterator[Callable[..., Stage]]:
    """Makes destinations with topics of their own: `make_stage(incomplete_expiration_ms=1000)`."""
    yield from _stages(spark, broker, tmp_path, unique)


@pytest.fixture(scope="module")
def make_shared_stage(
    spark: SparkSession, broker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Stage]]:
    """The same for destinations that several tests of a file look at."""
    yield from _stages(spark, broker, tmp_path_factory.mktemp("shared"), f"shared-{uuid4().hex[:8]}")


def _stages(spark: SparkSession, broker: Any, folder: Path, name: str) -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(
        rows: Callable[[str], Sequence[ResolvedRow]] = lambda name: (), inputs: Sequence[str] = (), **policy: Any
    ) -> Stage:
        given = {"handling_policy": HandlingPolicy.SINGLE_MESSAGE_DELIVERY} | policy
        own = f"{name}-{len(stages)}"
        topics = [f"{own}.{each}" for each in inputs]
        stages.append(
            Stage(spark, broker.bootstrap, folder / "tables", own, DestinationPolicy(**given), rows(own), topics)
        )
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    """A destination with the default policy."""
    return make_stage()
