"""`uow audit`: every unit computed again and compared with the tables. The work is done by `uow.spark_sink.audit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uow.cli.audit_page import page, range_text, routed_text, set_aside_text
from uow.cli.main import FAILED
from uow.cli.options import config_option, destinations_option, json_option, spark_options, tables_option
from uow.cli.sink_command import chosen_destinations, cluster_of
from uow.config.loading import Settings
from uow.terminal.printing import Progress, moment_text, print_json, print_table, wall_clock_ms

ONE_COMPILER_RECORDS = 2_000_000
"""Records up to which the second compiler of the JVM costs more than it saves, reckoned from 500,000: most of an audit is computed in Python."""

if TYPE_CHECKING:
    from uow.spark_sink.audit import AuditReport
    from uow.spark_sink.folders import Folder
    from uow.spark_sink.session import Place


@click.command()
@config_option
@tables_option
@destinations_option("all that are configured")
@click.option(
    "--html",
    "page_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the report as one HTML file, too.",
)
@click.option(
    "--incremental",
    is_flag=True,
    help="Audit only what came since the last audit. Without one, or after a change of settings, everything.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Let the next incremental audit go on behind this one even if there are differences.",
)
@json_option
@spark_options
def command(
    settings: Settings,
    root: Folder,
    place: Place,
    chosen: tuple[str, ...],
    page_file: Path | None,
    incremental: bool,
    accept: bool,
    as_json: bool,
) -> None:
    """Compute every unit again from its components, compare it with the tables, and count the differences.

    Exit 0 when nothing is missing, doubled, wrong, out of order or unaccounted, else 1. Run `uow sink --once` first: a unit that the sink
    has not written yet counts as missing. With --incremental rows that an earlier audit has judged are not looked at again.
    """
    from uow.ops.destination_logs import counts_with, log_reader
    from uow.ops.destination_rules import destination_rules
    from uow.ops.recorded_rights import require_rights_of_workers
    from uow.spark_sink.audit import Audit, unjudged
    from uow.spark_sink.delta_sink import LOAD_RECORDS
    from uow.spark_sink.delta_sink import settings as spark_settings
    from uow.spark_sink.destination_rules import NO_RULES
    from uow.spark_sink.session import session
    from uow.spark_sink.tables import DeltaTables
    from uow.topics.catalogue import DestinationTopics

    destinations = chosen_destinations(settings, chosen)
    cluster = cluster_of(settings)
    for name in destinations:
        topics = DestinationTopics(settings.application_id, name)
        partitions = counts_with(settings, topics.components)[topics.components]
        with log_reader(settings) as reader:
            require_rights_of_workers(reader, topics, range(partitions), settings.policy(name))
    rules = destination_rules(settings, destinations)
    wanted = [
        (DestinationTopics(settings.application_id, name), settings.policy(name), DeltaTables(root, name))
        for name in destinations
    ]
    reports = []
    with Progress("Spark is starting") as progress:
        records = sum(unjudged(cluster, *each, incremental=incremental) for each in wanted)
        is_short = place.is_here and records < LOAD_RECORDS
        properties = spark_settings(is_short=is_short, kafka=cluster.kafka, one_compiler=records < ONE_COMPILER_RECORDS)
        spark = session("uow audit", settings=properties, place=place)
        for names, policy, tables in wanted:
            progress.say(f"{names.destination}: computing every unit again")
            audit = Audit(spark, cluster, names, policy, tables, rules.get(names.destination, NO_RULES))
            reports.append(audit.run(incremental=incremental, accept=accept))
    if page_file is not None:
        page_file.write_text(page(reports, moment_text(wall_clock_ms())), encoding="utf-8")
    if as_json:
        print_json({report.destination: as_data(report) for report in reports})
    else:
        for report in reports:
            show(report)
    sys.exit(0 if all(report.is_clean for report in reports) else FAILED)


def as_data(report: AuditReport) -> dict[str, Any]:
    """A report as a JSON document."""
    return {
        "clean": report.is_clean,
        "received": report.received,
        "records": {
            fate.value: {"expected": report.count(fate), "found": report.found.get(fate)} for fate in report.fates
        },
        "partitions": {str(partition): dict(counts) for partition, counts in report.expected.items()},
        "units": dict(report.units),
        "range": {
            str(partition): [None if report.since is None else report.since[partition], end]
            for partition, end in report.until.items()
        },
        "routed": dict(report.routed),
        "note": report.note,
        "left_out": report.left_out,
        "unread": report.unread,
        "set_aside": [{"place": place, "id": group_id} for place, group_id in report.set_aside.items()],
        "differences": dict(report.totals),
        "examples": [
            {"what": each.what.value, "in": each.source, "id": each.id, "place": each.place, "detail": each.detail}
            for each in report.examples
        ],
    }


def show(report: AuditReport) -> None:
    """Prints a report for people."""
    click.echo(f"{report.destination}: {report.received} components and other records received, each with one fate")
    click.echo(range_text(report))
    if report.routed:
        click.echo(routed_text(report))
    if report.note:
        click.echo(report.note)
    print_table(
        ("fate", "expected", "found"),
        [(fate.value, report.count(fate), report.found.get(fate)) for fate in report.fates],
    )
    click.echo(
        "units: " + (", ".join(f"{count} {outcome}" for outcome, count in sorted(report.units.items())) or "none")
    )
    if report.unread:
        click.echo(
            f"{report.unread} records come after the position that the workers have committed, and were not checked"
        )
    if report.set_aside:
        click.echo(set_aside_text(report))
    if report.left_out:
        click.echo(
            f"{report.left_out} ids could not be judged: components of them, or a command that changed them, lie outside the range that was read"
        )
    if report.is_clean:
        click.echo("no difference")
        return
    print_table(
        ("difference", "in", "id", "where", "what"),
        [(e.what.value, e.source, e.id, e.place, e.detail) for e in report.examples],
    )
    click.echo("differences: " + ", ".join(f"{count} {what.value}" for what, count in report.totals.items()))
