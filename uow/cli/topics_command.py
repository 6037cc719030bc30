"""`uow topics create|check|repartition`: the topics of every configured destination."""

from __future__ import annotations

from dataclasses import asdict

import click

from uow.cli.main import FAILED
from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.ops.eras import record_strictness
from uow.ops.repartition import repartition as run_repartition
from uow.ops.target_topics import targets_by_destination
from uow.terminal.printing import print_json
from uow.topics import admin
from uow.topics.catalogue import (
    DEFAULT_PARTITIONS,
    DestinationTopics,
    TopicSpec,
    expected,
    expected_of_routers,
    expected_of_senders,
)


@click.group()
def command() -> None:
    """Create the topics of every destination, check them, or add partitions. No topic is ever deleted."""


_senders_option = click.option(
    "--senders", is_flag=True, help="Also the topic for units that are sent over several transactions."
)


@command.command()
@config_option
@click.option(
    "--partitions",
    type=click.IntRange(1, 100_000),
    default=DEFAULT_PARTITIONS,
    show_default=True,
    help="Partitions of new topics; a destination that has topics keeps its number.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 1000),
    help="Replicas of new topics. [default: 3, or the number of brokers if there are fewer]",
)
@_senders_option
@json_option
@click.pass_context
def create(
    ctx: click.Context,
    settings: Settings,
    partitions: int,
    replication_factor: int | None,
    senders: bool,
    as_json: bool,
) -> None:
    """Create missing topics; exit 1 when an existing topic has wrong settings."""
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    replication = replication_factor or admin.default_replication(client)
    created: list[str] = []
    existing: list[str] = []
    deviations: list[admin.Deviation] = []
    for specs in _specs(settings, partitions, replication, senders):
        report = admin.create_missing(client, specs)
        before = [spec for spec in specs if spec.name in report.existing and spec.name not in created]
        created.extend(report.created)
        existing.extend(spec.name for spec in before)
        if before:
            deviations.extend(admin.check_existing(client, before))
    order = [line for name in settings.destinations for line in record_strictness(settings, client, name)]
    if as_json:
        rows = [_row(each) for each in deviations]
        print_json({"created": created, "existing": existing, "deviations": rows, "strict_order": order})
    else:
        for name in created:
            click.echo(f"created {name}")
        click.echo(f"{len(created)} created, {len(existing)} existed already")
        for line in order:
            click.echo(line)
        _print_deviations(deviations)
    ctx.exit(FAILED if deviations else 0)


@command.command()
@config_option
@_senders_option
@json_option
@click.pass_context
def check(ctx: click.Context, settings: Settings, senders: bool, as_json: bool) -> None:
    """Report every wrong setting of a topic; exit 1 when there is one."""
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    deviations = [each for specs in _specs(settings, senders=senders) for each in admin.check(client, specs)]
    counts = admin.partition_counts(client)
    for name, policy in settings.destinations.items():
        components = DestinationTopics(settings.application_id, name).components
        deviations += admin.check_mirrors(counts, components, policy.mirror_prefixes)
    if as_json:
        print_json({"deviations": [_row(each) for each in deviations]})
    else:
        _print_deviations(deviations)
        if not deviations:
            click.echo(f"all topics are right: {', '.join(settings.destinations) or 'no destinations'}")
    ctx.exit(FAILED if deviations else 0)


@command.command()
@click.argument("destination")
@click.option(
    "--partitions", type=click.IntRange(1, 100_000), help="The new number. [default: that of the components topic]"
)
@click.option("--dry-run", is_flag=True, help="Change nothing; only say what would move.")
@click.option(
    "--leave-unread",
    is_flag=True,
    help="Do not assemble what lies unread before groups move: workers send it on to its new partition, where it may be late.",
)
@config_option
@json_option
def repartition(
    destination: str, partitions: int | None, dry_run: bool, leave_unread: bool, settings: Settings, as_json: bool
) -> None:
    """Give DESTINATION more partitions, and move each open group, whole, to the partition where its id belongs then.

    Under hash routing stop all workers first, and start them again afterwards. After a failure run the same command again. Under path
    routing workers may keep running.
    """
    report = run_repartition(settings, destination, partitions, dry_run=dry_run, leave_unread=leave_unread)
    moved = report.moved
    if as_json:
        print_json(asdict(report))
        return
    would, what = ("would be ", "would move") if dry_run else ("", "moved")
    for name in report.grown:
        click.echo(f"{name}: {would}given {report.after} partitions")
    if report.unread:
        click.echo(f"{destination}: what lay unread {'would be' if dry_run else 'was'} assembled first")
    if report.left:
        click.echo(
            f"{destination}: what lies unread is left to the workers: they send it on, and some of it may be late"
        )
    click.echo(
        f"{destination}: {report.before} -> {report.after} partitions; {what}: {moved.groups} open groups with {moved.components} "
        f"components, {moved.closed} remembered ids"
    )


def _specs(
    settings: Settings, partitions: int = DEFAULT_PARTITIONS, replication: int = 1, senders: bool = False
) -> list[list[TopicSpec]]:
    """The expected topics of each destination, and those of routers and of senders of long units."""
    worker = settings.worker("")
    targets = targets_by_destination(settings)
    found = [
        expected(
            settings.application_id,
            destination,
            policy,
            partitions,
            replication,
            worker.replay_ms,
            targets.get(destination, {}),
            is_trial=settings.is_trial,
        )
        for destination, policy in settings.destinations.items()
    ]
    if worker.routers:
        outputs = {spec.name for specs in found for spec in specs}
        found.append(expected_of_routers(settings.application_id, worker.inputs, partitions, replication, outputs))
    if senders:
        found.append(expected_of_senders(settings.application_id, partitions, replication))
    return found


def _row(deviation: admin.Deviation) -> dict[str, str]:
    return {
        "topic": deviation.topic,
        "what": deviation.what,
        "expected": deviation.expected,
        "actual": deviation.actual,
        "reason": deviation.reason,
    }


def _print_deviations(deviations: list[admin.Deviation]) -> None:
    for deviation in deviations:
        click.echo(str(deviation))
