"""`uow report`: a page with plots about finished units. The numbers are those of `uow.spark_sink.summary`, the page is `uow.report`'s."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from uow.cli.options import (
    TimeType,
    config_file_option,
    destinations_option,
    json_option,
    producer_header_option,
    spark_options,
    tables_option,
)
from uow.config.loading import load
from uow.schemas.error_classes import UowError
from uow.terminal.printing import Progress, print_json, wall_clock_ms

if TYPE_CHECKING:
    from uow.processor.engine.group_view import OpenGroup
    from uow.spark_sink.folders import Folder
    from uow.spark_sink.session import Place


@click.command()
@tables_option
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
    help="The page to write.",
)
@destinations_option("all that have tables")
@click.option("--since", type=TimeType(), help="Leave out records that Kafka has from before this moment.")
@click.option("--until", type=TimeType(), help="Leave out records that Kafka has from this moment on.")
@producer_header_option
@config_file_option
@json_option
@spark_options
def command(
    root: Folder,
    place: Place,
    out: Path,
    chosen: tuple[str, ...],
    since: int | None,
    until: int | None,
    producer_header: str,
    path: Path | None,
    as_json: bool,
) -> None:
    """Write one HTML file about the units in the tables below DIR: it needs no server and no network.

    It shows how long units take, which component comes last and whom units wait for, components refused, what was missing where a group did
    not become whole, and volumes by time. With -c FILE the broker is asked for the oldest open groups too, as of now. With --json the numbers
    are printed, and no page is written.
    """
    from uow.report.sections import report_page
    from uow.spark_sink.delta_sink import settings as spark_settings
    from uow.spark_sink.session import session
    from uow.spark_sink.summary import summarize
    from uow.spark_sink.views import destinations, register

    if not out.resolve().parent.is_dir():
        raise click.BadParameter(f"{out.parent} is no folder", param_hint="--out")
    with Progress("Spark is starting") as progress:
        if isinstance(root, Path):
            destinations(root)  # complains before Spark is started
        spark = session("uow report", settings=spark_settings(is_short=place.is_here), place=place)
        progress.say("reading the tables")
        names = [*dict.fromkeys(chosen)] or destinations(str(root))
        open_groups = None if path is None else groups_of(path, names)
        register(spark, str(root), names, producer_header=producer_header)
        summary = summarize(spark, names, since, until)
    now = wall_clock_ms()
    if as_json:
        groups = {name: [group.row(now) for group in each] for name, each in (open_groups or {}).items()}
        print_json(asdict(summary) | {"open_groups": None if open_groups is None else groups})
        return
    try:
        out.write_text(report_page(summary, now, open_groups), encoding="utf-8")
    except OSError as error:
        raise UowError(f"cannot write {out}: {error.strerror}") from error
    click.echo(out)


def groups_of(path: Path, names: list[str]) -> dict[str, list[OpenGroup]]:
    """Open groups of the destinations that a configuration file has, as the broker has them now."""
    from uow.ops.destination_logs import log_reader, task_context
    from uow.ops.inspect import open_groups

    settings = load(path)
    with log_reader(settings) as reader:
        return {
            name: open_groups(reader, task_context(settings, name)) for name in names if name in settings.destinations
        }
