"""`uow adopt D`: accepts what has changed under strict order, as an operator's decision (S-13, S-15, S-21)."""

from __future__ import annotations

from dataclasses import asdict

import click

from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.terminal.printing import print_json


@click.command()
@click.argument("destination")
@click.option(
    "--group", metavar="G", help="Begin consumer group G at the start of the era; none of its readers may run."
)
@click.option("--discard-backlog", is_flag=True, help="With --group: lose what it has not read of before the era.")
@click.option("--why", required=True, metavar="TEXT", help="The reason; it is recorded.")
@click.option("--dry-run", is_flag=True, help="Change nothing; only say what would be adopted.")
@config_option
@json_option
def command(
    destination: str,
    group: str | None,
    discard_backlog: bool,
    why: str,
    dry_run: bool,
    settings: Settings,
    as_json: bool,
) -> None:
    """Adopt the topics of DESTINATION as they are now: a new era of strict order begins.

    That is needed after partitions were added or a topic was made again: clients have stopped. Then, and after strict order was switched on, each
    consumer group that read before is adopted with --group.
    """
    from uow.ops.eras import adopt, adopt_group

    settings.policy(destination)
    if not why.strip():
        raise click.UsageError("--why needs a reason")
    if group is None:
        if discard_backlog:
            raise click.UsageError("--discard-backlog needs --group")
        report = adopt(settings, destination, why, dry_run=dry_run)
    else:
        report = adopt_group(settings, destination, group, why, discard_backlog=discard_backlog, dry_run=dry_run)
    if as_json:
        print_json(asdict(report))
        return
    would = "would be " if dry_run else ""
    for each in report.differences:
        click.echo(f"{would}adopted: {each}")
    if not report.starts:
        click.echo(f"nothing to adopt: era {report.era} of {destination} holds")
    elif group is None:
        click.echo(
            f"era {report.era} of {destination} {'would begin' if dry_run else 'begins'}; adopt its consumer groups with --group"
        )
    else:
        lost = f", {report.backlog} records before it are lost to the group" if report.backlog else ""
        click.echo(f"group {group} {'would begin' if dry_run else 'begins'} at the start of era {report.era}{lost}")
