"""`uow sink`: the Spark pipeline into Delta tables, once or until SIGTERM. The work is done by `uow.spark_sink.delta_sink`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from uow.cli.options import config_option, json_option, tables_option
from uow.config.loading import Settings
from uow.schemas.error_classes import ConfigError
from uow.terminal.printing import (
    Progress,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from uow.spark_sink.kafka import Cluster


@click.command()
@config_option
@tables_option
@click.option("--once", is_flag=True, help="Write the records that are committed now, then end.")
@click.option(
    "--destination",
    "chosen",
    multiple=True,
    metavar="D",
    help="Only this one; may be repeated. [default: all that are configured]",
)
@click.option(
    "--components",
    "form",
    type=click.Choice(["nested", "table"]),
    default="nested",
    show_default=True,
    help="In the units' rows, or in a table of their own. Existing tables keep their form.",
)
@json_option
def command(settings: Settings, root: Path, once: bool, chosen: tuple[str, ...], form: str, as_json: bool) -> None:
    """Write units into Delta tables below DIR, with a folder for each destination.

    Each destination has the tables units, components, rejected, passed, outcomes, answers and unreadable. Every record is written exactly
    once, however often this is stopped, killed and started again with the same DIR. A record that cannot be read goes to unreadable, with the
    reason.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    from uow.spark_sink import delta_sink as sink
    from uow.spark_sink.session import session
    from uow.spark_sink.tables import ComponentsForm, Table

    destinations = chosen_destinations(settings, chosen)
    with SinkProgress() as progress:
        policies = {name: settings.policy(name) for name in destinations}
        where = cluster_of(settings), root.resolve(), settings.application_id, policies
        spark = session("uow sink", settings=sink.settings(is_short=once and sink.is_small(*where)))
        sinks = sink.sinks(spark, *where, ComponentsForm(form))
        try:
            sink.run(sinks, once=once, stop=stop, progress=progress.batch)
        except KeyboardInterrupt:
            stop.set()
        rows = sink.rows(sinks)
    for destination, tables in rows.items():
        if count := tables[Table.UNREADABLE]:
            say(f"uow: {destination}: {count} records cannot be read: see table {Table.UNREADABLE}")
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("destination", "table", "rows"),
            [(destination, table, count) for destination, tables in rows.items() for table, count in tables.items()],
        )


def chosen_destinations(settings: Settings, chosen: tuple[str, ...]) -> list[str]:
    """The named destinations, or all configured ones.

    Raises:
        ConfigError: One is not configured, or none is.
    """
    for name in chosen:
        settings.policy(name)
    found = [*dict.fromkeys(chosen)] or [*settings.destinations]
    if not found:
        raise ConfigError("destinations", None, "needs at least one destination")
    return found


def cluster_of(settings: Settings) -> Cluster:
    """The cluster that Spark reads from, by the settings of `uow`."""
    from uow.spark_sink.kafka import Cluster

    return Cluster(settings.bootstrap_servers, settings.kafka, settings.registry_url)


class SinkProgress(Progress):
    """Progress line with the number of records written, by destination."""

    def __init__(self) -> None:
        super().__init__("Spark is starting")
        self._records: dict[str, int] = {}

    def batch(self, destination: str, records: int) -> None:
        """Takes note of a batch that has been written."""
        self._records[destination] = self._records.get(destination, 0) + records
        self.say(", ".join(f"{name}: {count} records" for name, count in self._records.items()))
