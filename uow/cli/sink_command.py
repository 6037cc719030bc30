"""`uow sink`: units into Delta tables and files, once or until SIGTERM; `sink maintain`: upkeep of tables; `sink again`: files that were lost.

The work is done by `uow.spark_sink.delta_sink`, `uow.spark_sink.file_sink` and `uow.spark_sink.maintenance`.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from uow.cli.options import (
    TABLES_HELP,
    DurationType,
    FolderType,
    config_file_option,
    destinations_option,
    json_option,
    spark_options,
    tables_option,
)
from uow.config.loading import Settings, load
from uow.schemas.error_classes import ConfigError
from uow.terminal.printing import (
    Progress,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from uow.spark_sink.file_sink import FileSink
    from uow.spark_sink.folders import Folder
    from uow.spark_sink.kafka import Cluster
    from uow.spark_sink.monitor import StreamState
    from uow.spark_sink.payload_columns import Declaration
    from uow.spark_sink.session import Place

SHORTEST_RETENTION_MS: Final = 3_600_000


@click.group(invoke_without_command=True)
@config_file_option
@click.option("--tables", "root", type=FolderType(), metavar="DIR", help=TABLES_HELP)
@click.option(
    "--files",
    "file_root",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the files for suppliers: one for each unit.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["xml", "json", "avro"]),
    default="xml",
    show_default=True,
    help="Format of these files.",
)
@click.option(
    "--payload",
    "payloads",
    multiple=True,
    metavar="D=FILE",
    help="The payload of D as typed columns, in table payloads: an Avro definition (.avsc; repeated, its versions in order), or columns of JSON as "
    "Spark's DDL (.ddl). A registry adds versions of the same record.",
)
@click.option("--once", is_flag=True, help="Write the records that are committed now, then end.")
@destinations_option("all that are configured")
@click.option(
    "--components",
    "form",
    type=click.Choice(["nested", "table"]),
    default="nested",
    show_default=True,
    help="In the units' rows, or in a table of their own. Existing tables keep their form.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve metrics for Prometheus.")
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address for --metrics-port."
)
@json_option
@click.pass_context
@spark_options
def command(
    ctx: click.Context,
    path: Path | None,
    root: Folder | None,
    place: Place,
    file_root: Path | None,
    kind: str,
    payloads: tuple[str, ...],
    once: bool,
    chosen: tuple[str, ...],
    form: str,
    metrics_port: int | None,
    metrics_host: str,
    as_json: bool,
) -> None:
    """Write units into Delta tables, into files, or both, with a folder for each destination.

    Each destination has the tables units, components, rejected, passed, outcomes, answers and unreadable. Every record is written exactly
    once, however often this is stopped, killed and started again with the same DIR. A record that cannot be read goes to unreadable, with the
    reason.

    With --files each unit is a file, written once, and listed with its digest in DIR/D/TOPIC/manifest as soon as it may be taken. Units by rule
    stand in a folder of their routing name there, with a manifest of its own.

    The target topics of rules are read too, as they are when this starts.
    """
    if ctx.invoked_subcommand is not None:
        if given := [name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]:
            raise click.UsageError(f"options belong behind {ctx.invoked_subcommand}: {', '.join(sorted(given))}")
        return
    if root is None and file_root is None:
        raise click.UsageError("Missing option '--tables' or '--files'.")
    settings = load(path)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    from uow.ops.destination_rules import destination_rules
    from uow.ops.leases import leased
    from uow.spark_sink import delta_sink as sink
    from uow.spark_sink.file_sink import checkpoint_of, file_sinks
    from uow.spark_sink.monitor import SinkMonitor, watching
    from uow.spark_sink.payload_sink import payload_sinks
    from uow.spark_sink.session import session
    from uow.spark_sink.tables import PAYLOADS, ComponentsForm, DeltaTables
    from uow.spark_sink.unit_files import FileFormat

    policies = {name: settings.policy(name) for name in chosen_destinations(settings, chosen)}
    declared = _declarations(payloads, policies, is_possible=root is not None)
    file_root = None if file_root is None else file_root.resolve()
    rules = destination_rules(settings, policies)

    def checkpoints(name: str) -> list[Folder]:
        tables: list[Folder] = [] if root is None else [DeltaTables(root, name).checkpoint]
        return tables if file_root is None else [*tables, checkpoint_of(file_root, name)]

    with leased(settings, policies, _outputs(root, file_root), stop), Progress("Spark is starting") as line:
        cluster, application = cluster_of(settings), settings.application_id
        is_local = place.is_here and (root is None or isinstance(root, Path))
        is_short = once and is_local and sink.is_small(cluster, checkpoints, application, policies, rules)
        properties = sink.settings(is_short=is_short, kafka=cluster.kafka) | sink.ONE_PASS
        spark = session("uow sink", settings=properties, place=place)
        where = spark, cluster
        tables = [] if root is None else sink.sinks(*where, root, application, policies, ComponentsForm(form), rules)
        files = (
            [] if file_root is None else file_sinks(*where, file_root, application, policies, FileFormat(kind), rules)
        )
        typed = payload_sinks(spark, tables, declared)
        first: list[sink.Sink] = [*tables, *files]
        rounds: list[list[sink.Sink]] = [first, [*typed]] if once else [[*first, *typed]]
        monitor = SinkMonitor()
        monitor.on_change = lambda: line.say(progress_text(monitor.streams))
        with watching(spark, monitor, metrics_host, metrics_port):
            try:
                for streams in rounds:  # payloads are read from the tables
                    sink.run(streams, once=once, stop=stop, progress=lambda name, done: monitor.wrote(name, *done))
            except KeyboardInterrupt:
                stop.set()
        rows = sink.rows(tables)
        for stream in typed:
            rows[stream.tables.destination][PAYLOADS] = stream.count()
    _tell_problems(rows, files)
    for each in files:
        rows.setdefault(each.names.destination, {})["files"] = each.count()
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("destination", "table", "rows"),
            [(destination, table, count) for destination, counts in rows.items() for table, count in counts.items()],
        )


def _declarations(payloads: Sequence[str], destinations: Iterable[str], *, is_possible: bool) -> dict[str, Declaration]:
    """The declared payload of each destination that has one.

    Raises:
        ConfigError: One cannot be used.
    """
    from uow.spark_sink.payload_columns import Declaration

    files: dict[str, list[Path]] = {}
    for each in payloads:
        name, found, path = each.partition("=")
        if not found or name not in destinations or not is_possible:
            raise ConfigError("--payload", each, "needs --tables, and D=FILE with a destination of this sink")
        files.setdefault(name, []).append(Path(path))
    return {name: Declaration.of(paths) for name, paths in files.items()}


def _tell_problems(rows: Mapping[str, Mapping[str, int]], files: Sequence[FileSink]) -> None:
    from uow.spark_sink.tables import Table

    for destination, counts in rows.items():
        if count := counts[Table.UNREADABLE]:
            say(f"uow: {destination}: {count} records cannot be read: see table {Table.UNREADABLE}")
    for each in files:
        if count := each.problems():
            say(f"uow: {each.names.destination}: {count} records have no file of their own: see {each.problem_folder}")


@command.command()
@tables_option
@destinations_option("all in DIR")
@click.option(
    "--retain",
    "retain_ms",
    type=DurationType(),
    default="7d",
    show_default=True,
    help="Age of the versions of a table that can still be read afterwards, at least an hour: longer than any query or batch takes.",
)
@click.option("--z-order", is_flag=True, help="Order all rows by time and id; that writes every table again.")
@click.option("--dry-run", is_flag=True, help="Only say what it would do.")
@click.option("--alone", is_flag=True, help="No sink is running: needed in S3.")
@json_option
@spark_options
def maintain(
    root: Folder,
    place: Place,
    chosen: tuple[str, ...],
    retain_ms: int,
    z_order: bool,
    dry_run: bool,
    alone: bool,
    as_json: bool,
) -> None:
    """Write the small files of the tables together into large ones, and delete files that are no longer needed.

    A sink may run meanwhile, but not in S3 (--alone). Rows stay the same. Run it from a schedule: daily, or hourly where a sink never stops.
    """
    if retain_ms < SHORTEST_RETENTION_MS:
        raise click.BadParameter("at least 1h is needed, for what reads or writes meanwhile", param_hint="--retain")
    if not (alone or dry_run) and not isinstance(root, Path) and root.scheme.startswith("s3"):
        raise click.UsageError(
            "in S3 two programs that write one table may undo each other's work: stop the sink, and say --alone"
        )
    from uow.spark_sink import delta_sink as sink
    from uow.spark_sink import maintenance
    from uow.spark_sink.session import session
    from uow.spark_sink.tables import tables_below

    done: dict[str, dict[str, maintenance.Maintained]] = {}
    with Progress("Spark is starting") as progress:
        spark = session("uow sink maintain", settings=sink.settings(is_short=False) | maintenance.SETTINGS, place=place)
        for tables in tables_below(root, chosen):
            done[tables.destination] = {}
            for table in tables.made():
                progress.say(f"{tables.destination}: {table}")
                done[tables.destination][table] = maintenance.maintain(
                    spark, tables, table, retain_ms=retain_ms, z_order=z_order, dry_run=dry_run
                )
    if as_json:
        print_json({name: {table: asdict(each) for table, each in parts.items()} for name, parts in done.items()})
    else:
        columns = [field.name for field in fields(maintenance.Maintained)]
        print_table(
            ("destination", "table", *(column.replace("_", " ") for column in columns)),
            [(name, table, *astuple(each)) for name, parts in done.items() for table, each in parts.items()],
        )


@command.command()
@config_file_option
@click.option(
    "--files",
    "file_root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder of the files for suppliers.",
)
@destinations_option("all that are configured")
@click.argument("unit_ids", nargs=-1, required=True, metavar="UNIT_ID...")
@json_option
def again(
    path: Path | None, file_root: Path, chosen: tuple[str, ...], unit_ids: tuple[str, ...], as_json: bool
) -> None:
    """Write the files of some units again, of which one was lost or damaged.

    A file gets the content that its manifest lists, from the unit's record, which must still be in its topic. A sink may run meanwhile.
    """
    settings = load(path)
    from uow.ops.destination_rules import destination_rules
    from uow.spark_sink import delta_sink as sink
    from uow.spark_sink.file_sink import file_sinks, write_again
    from uow.spark_sink.session import session
    from uow.spark_sink.unit_files import FileFormat

    policies = {name: settings.policy(name) for name in chosen_destinations(settings, chosen)}
    with Progress("Spark is starting"):
        cluster = cluster_of(settings)
        spark = session("uow sink again", settings=sink.settings(is_short=True, kafka=cluster.kafka))
        where = spark, cluster, file_root.resolve(), settings.application_id
        rules = destination_rules(settings, policies)
        written = write_again(file_sinks(*where, policies, FileFormat.XML, rules), unit_ids)
    if as_json:
        print_json([str(each) for each in written])
    else:
        print_table(("file",), [(str(each),) for each in written])


def _outputs(*folders: Folder | None) -> list[str]:
    """Names of the folders that a sink writes to; one on this machine is another one on the next."""
    here = socket.gethostname()
    return [f"{here}:{each.resolve()}" if isinstance(each, Path) else str(each) for each in folders if each is not None]


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
    """The cluster that Spark reads from, by the settings of `uow`.

    Raises:
        ConfigError: A setting cannot be translated for Spark's clients.
    """
    from uow.spark_sink.kafka import Cluster
    from uow.spark_sink.kafka_security import java_properties, with_contents

    kafka = with_contents(settings.kafka)
    java_properties(kafka)  # complains before Spark is started
    return Cluster(settings.bootstrap_servers, kafka, settings.registry_url)


def progress_text(streams: Mapping[str, StreamState]) -> str:
    """The streams in one line."""
    return ", ".join(
        f"{name}: {state.records:,} records, {state.records_per_second:,.0f}/s, {state.behind:,} behind"
        for name, state in sorted(streams.items())
    )
