"""The state of the streams of a sink, its metrics, and their page for Prometheus.

Two sources: Spark's own listener tells offsets, rates and times after each trigger, a batch tells the records and units that it has written.

Belongs here: this state, and each metric as data. Does not belong here: the line on a terminal (`uow.cli.sink_command`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from uow.schemas.error_classes import UowError

QUERY: Final = "uow sink "
"""Name of a destination's stream, before the name of the destination."""


@dataclass(slots=True)
class StreamState:
    """One destination's stream. Written by threads of Spark; each value is replaced at once.

    Attributes:
        records: Records written since the start.
        batches: Batches written since the start.
        batch_seconds: Duration of the last batch.
        records_per_second: Records of the last batch that had some, by its duration.
        behind: Offsets between those that are written and the ends of the topics, markers included.
        last_closed_at: Latest time at which a written unit was closed, epoch seconds; 0 before the first one.
        is_running: False once it has ended or failed.
    """

    records: int = 0
    batches: int = 0
    batch_seconds: float = 0.0
    records_per_second: float = 0.0
    behind: int = 0
    last_closed_at: float = 0.0
    is_running: bool = True


@dataclass(frozen=True, slots=True)
class SinkMetric:
    """One metric, labelled with the destination."""

    name: str
    kind: str
    text: str
    read: Callable[[StreamState], float]


METRICS: Final[tuple[SinkMetric, ...]] = (
    SinkMetric(
        "uow_sink_records", "counter", "Records written to the tables since the sink started.", lambda s: s.records
    ),
    SinkMetric("uow_sink_batches", "counter", "Batches written since the sink started.", lambda s: s.batches),
    SinkMetric(
        "uow_sink_records_per_second",
        "gauge",
        "Records of the last batch by its duration.",
        lambda s: s.records_per_second,
    ),
    SinkMetric("uow_sink_batch_seconds", "gauge", "Duration of the last batch.", lambda s: s.batch_seconds),
    SinkMetric(
        "uow_sink_lag_records",
        "gauge",
        "Offsets of the topics that are not in the tables yet, transaction markers included.",
        lambda s: s.behind,
    ),
    SinkMetric(
        "uow_sink_last_unit_seconds",
        "gauge",
        "Latest closing (epoch) of a unit written since the sink started; 0: none.",
        lambda s: s.last_closed_at,
    ),
    SinkMetric(
        "uow_sink_running",
        "gauge",
        "1 while the stream runs; 0 once it has ended or failed.",
        lambda s: float(s.is_running),
    ),
)


@dataclass(slots=True)
class SinkMonitor:
    """The streams of a sink.

    Attributes:
        streams: State by destination.
        on_change: Called after each change, by threads of Spark.
    """

    streams: dict[str, StreamState] = field(default_factory=dict)
    on_change: Callable[[], None] = lambda: None

    def wrote(self, destination: str, records: int, closed_at: float | None) -> None:
        """Takes note of a batch that has been written; `closed_at`: latest closing of a unit in it, epoch seconds."""
        state = self.of(destination)
        state.records += records
        state.batches += 1
        state.last_closed_at = max(state.last_closed_at, closed_at or 0.0)
        self.on_change()

    def progressed(self, destination: str, progress: Any) -> None:
        """Takes note of a trigger, as Spark tells it."""
        state = self.of(destination)
        if progress.numInputRows:
            state.batch_seconds = progress.durationMs.get("triggerExecution", 0) / 1000
            state.records_per_second = progress.processedRowsPerSecond or 0.0
        found = [behind(source.endOffset, source.latestOffset) for source in progress.sources]
        known = [each for each in found if each is not None]
        if len(known) == len(found):
            state.behind = sum(known)
        self.on_change()

    def of(self, destination: str) -> StreamState:
        """The state of a destination's stream."""
        return self.streams.setdefault(destination, StreamState())


def behind(written: str, latest: str) -> int | None:
    """The number of offsets between two positions of a Kafka source, as Spark's progress has them: JSON by topic and partition.

    None if the latest one is not known: a batch that is repeated after a restart asks for none, and PySpark makes it the text `None`.
    """
    if not latest.startswith("{"):
        return None
    end: dict[str, dict[str, int]] = json.loads(written) if written.startswith("{") else {}
    last: dict[str, dict[str, int]] = json.loads(latest)
    return sum(
        max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in last.items()
        for partition, offset in partitions.items()
    )


class SinkListener(StreamingQueryListener):
    """Spark's listener, for the streams of this sink only."""

    def __init__(self, monitor: SinkMonitor) -> None:
        self._monitor = monitor
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        if (event.name or "").startswith(QUERY):
            self._names[str(event.runId)] = event.name.removeprefix(QUERY)
            self._monitor.of(event.name.removeprefix(QUERY)).is_running = True

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if destination := self._names.get(str(event.progress.runId)):
            self._monitor.progressed(destination, event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        if destination := self._names.get(str(event.runId)):
            self._monitor.of(destination).is_running = False


class SinkCollector(Collector):
    """Makes the metrics when Prometheus asks."""

    def __init__(self, streams: Mapping[str, StreamState]) -> None:
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        for spec in METRICS:
            family = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
            metric = family(spec.name, spec.text, labels=("destination",))
            for destination, state in sorted(self._streams.items()):
                metric.add_metric((destination,), spec.read(state))
            yield metric


@contextmanager
def watching(spark: SparkSession, monitor: SinkMonitor, host: str, port: int | None) -> Iterator[None]:
    """Listens to Spark, and serves the metrics on `http://HOST:PORT/metrics` if there is a port.

    Raises:
        UowError: The port cannot be used.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SinkCollector(monitor.streams))
    listener = SinkListener(monitor)
    with ExitStack() as ends:
        if port is not None:
            try:
                server, thread = start_http_server(port, host, registry)
            except OSError as error:
                raise UowError(f"cannot serve metrics on {host}:{port}: {error.strerror}") from error
            for end in (thread.join, server.server_close, server.shutdown):
                ends.callback(end)
        spark.streams.addListener(listener)
        ends.callback(spark.streams.removeListener, listener)
        yield
