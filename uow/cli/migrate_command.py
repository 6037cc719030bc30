"""`uow migrate D --to TARGET.toml`: a destination moves to another cluster, or to other topics."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from pathlib import Path

import click

from uow.cli.options import config_option, json_option
from uow.config.loading import Settings, load
from uow.ops.migration import Migration, MigrationReport
from uow.terminal.printing import print_json, say

LOOK_AGAIN_S = 0.5
TEXTS = {
    "begun": "the state can be restored, and the topics are there",
    "fenced": "no worker may start at the old place any more",
    "outputs": "outputs are copied",
    "consumers": "consumer groups have moved",
    "input": "unread input is copied",
    "state": "open groups have moved: workers may start at the new place",
}
"""By step of `uow.ops.migration.STEPS`."""


@click.command()
@click.argument("destination")
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Configuration of the other cluster; environment variables do not count for it.",
)
@click.option("--as", "to", metavar="NAME", help="Name of the destination there. [default: the same]")
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="G",
    help="Move only this consumer group; may be repeated. [default: all with offsets on the destination's outputs]",
)
@click.option("--all-outputs", is_flag=True, help="Copy outputs from their beginning, also what all have read.")
@click.option(
    "--follow", is_flag=True, help="Go on copying what producers send to the old cluster, until SIGTERM or SIGINT."
)
@click.option(
    "--undo", is_flag=True, help="Let workers start at the old place again; only while none may start at the new one."
)
@click.option("--dry-run", is_flag=True, help="Change nothing; only say what would move.")
@config_option
@json_option
def command(
    destination: str,
    target: Path,
    to: str | None,
    groups: tuple[str, ...],
    all_outputs: bool,
    follow: bool,
    undo: bool,
    dry_run: bool,
    settings: Settings,
    as_json: bool,
) -> None:
    """Move DESTINATION to another cluster or to other topics: open groups, unread input, unread outputs, consumer groups.

    Stop all workers and consumers first. After a failure run the same command again: it goes on where it was. When it ends, start
    workers and consumers at the new place, then move the producers.
    """
    if undo and (dry_run or follow):
        raise click.UsageError("--undo stands alone")
    migration = Migration(
        settings,
        destination,
        load(target, {}),
        to or destination,
        groups=groups,
        all_outputs=all_outputs,
        on_step=_say_step,
    )
    if undo:
        migration.undo()
        say(f"uow: workers may start again: {migration.here.text}")
        return
    report = migration.dry_run() if dry_run else _run(migration, follow)
    if as_json:
        print_json({"dry_run": dry_run, **asdict(report)})
    else:
        _print(report, dry_run)


def _say_step(step: str) -> None:
    if step in TEXTS:
        say(f"uow: {TEXTS[step]}")


def _run(migration: Migration, follow: bool) -> MigrationReport:
    if not follow:
        return migration.run()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return migration.run(lambda: not stop.wait(LOOK_AGAIN_S))


def _print(report: MigrationReport, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    click.echo(f"{report.source} -> {report.target}")
    if report.state_moved:
        moved = report.moved
        click.echo(
            f"{would}moved: {moved.groups} open groups with {moved.components} components, {moved.closed} remembered ids"
        )
    else:
        click.echo("open groups were moved before")
    for topic, count in report.copied.items():
        click.echo(f"{topic}: {count} records {would}copied")
    for topic, count in report.left.items():
        click.echo(f"{topic}: {count} records left, whose headers cannot be read")
    for topic in report.unread_by_nobody:
        click.echo(f"{topic}: no consumer group reads it; its records stay (--all-outputs copies them)")
    for each in report.consumers:
        click.echo(f"consumer group {each.group}, {each.topic}: {each.unread} unread, there as here")
    if not dry_run:
        click.echo(
            "next: start workers and consumers there; move the producers; run this command once more when the last one has moved"
        )
