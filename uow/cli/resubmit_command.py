"""`uow resubmit D`: refused components, corrected, sent again (W-80, W-202); components without a group, brought back (B-72)."""

from __future__ import annotations

from typing import Any, BinaryIO

import click

from uow.cli.main import FAILED
from uow.cli.options import config_option, json_option
from uow.cli.rejected_options import RejectedFrom, chosen, refused_options
from uow.cli.stranded import Stranded, recycle, stranded_options
from uow.client.connection import Connection, connect
from uow.client.given_up_units import by_unit, unit_again
from uow.client.rejected_records import (
    Correction,
    RefusedRecord,
    corrected,
    refused,
)
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader
from uow.schemas.error_classes import DecodeError
from uow.schemas.registry import connect as connect_registry
from uow.terminal.printing import (
    print_json_line,
    printable,
    say,
    wall_clock_ms,
)
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import Reading


def _headers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, bytes]:
    pairs = [each.partition("=") for each in value]
    if any(not name or not sign for name, sign, _ in pairs):
        raise click.BadParameter("NAME=VALUE")
    return {name: said.encode("utf-8", "surrogateescape") for name, _, said in pairs}


@click.command()
@click.argument("destination")
@click.argument("coordinates", nargs=-1, metavar="[TOPIC/PARTITION/OFFSET]...")
@refused_options
@click.option("--all", "everything", is_flag=True, help="Every record of the topic.")
@click.option("--set", "put", multiple=True, callback=_headers, metavar="NAME=VALUE", help="Set a header: `uow-seq=2`.")
@click.option("--drop", multiple=True, metavar="NAME", help="Remove a header.")
@click.option("--value", type=click.File("rb"), metavar="FILE", help="The new value; `-` is standard input.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Send nothing if more records match."
)
@click.option("--dry-run", is_flag=True, help="Send nothing; only list the records that would be sent.")
@stranded_options
@config_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    destination: str,
    coordinates: tuple[str, ...],
    source: RejectedFrom,
    everything: bool,
    put: dict[str, bytes],
    drop: tuple[str, ...],
    value: BinaryIO | None,
    limit: int,
    dry_run: bool,
    settings: Settings,
    as_json: bool,
    stranded: Stranded,
    **filters: Any,
) -> None:
    """Send components again that DESTINATION refused (with --from errors: gave up).

    A unit that its readers gave up goes back whole, under a new id (or the one of --set uow-id=NEW). Others keep key, value and headers, except for the changes by --set, --drop and --value, and for an expiry that has passed. A closed group
    takes no more components: give them a new id with --set uow-id=NEW. If one is sent twice, the second is refused as a duplicate.

    With --stranded, --component or --older-than: bring components back that are held without a group (`uow groups D --audit`). A worker gives each to
    the open group of its id, where it keeps its own deadline.
    """
    if stranded.is_meant:
        others = {name for name, value in filters.items() if value is not None and name != "id"}
        if others or coordinates or everything or put or drop or value is not None:
            raise click.UsageError("components without a group are named by --component, --id and --older-than alone")
        recycle(ctx, settings, destination, stranded, filters["id"], limit, dry_run, as_json)
        return
    choice = chosen(filters, coordinates)
    if everything != choice.is_everything:
        raise click.UsageError("give coordinates or filters, or --all alone")
    topic, partitions = source.topic(settings, destination)
    with log_reader(settings) as reader:
        found = refused(reader, topic, partitions, choice)
    missing = {*coordinates} - {each.coordinates for each in found}
    if missing:
        say(f"uow: nothing at {', '.join(sorted(missing))}")
        ctx.exit(FAILED)
    if len(found) > limit:
        say(f"uow: {len(found)} records match, more than --limit {limit}; nothing was sent")
        ctx.exit(FAILED)
    if value is not None and (len(found) != 1 or found[0].is_unit):
        raise click.UsageError(f"--value goes with one component; {len(found)} records match")
    correction = Correction(
        {**put, **dict.fromkeys(drop)}, value.read() if value is not None else None, value is not None
    )
    if not _send(settings, destination, found, correction, dry_run, as_json):
        ctx.exit(FAILED)


def _send(
    settings: Settings,
    destination: str,
    found: list[RefusedRecord],
    correction: Correction,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Sends them one after the other. True if all of them could be sent."""
    components, now = DestinationTopics(settings.application_id, destination).components, wall_clock_ms()
    whole = True
    with connect(settings.bootstrap_servers, kafka=settings.kafka, reconnect_policy="none") as connection:
        for several in by_unit(found):
            record = several[0]
            if record.is_unit:
                whole &= _send_unit(settings, destination, connection, several, correction, dry_run, as_json)
                continue
            if not record.can_go_back or (record.lacks_value and not correction.with_value):
                whole = False
                say(f"uow: {record.coordinates} cannot be sent again: parts of the record were not kept")
                continue
            outgoing = corrected(record, components, correction, now)
            sent = None if dry_run else connection.send_again(record.coordinates, outgoing)
            where = None if sent is None else f"{sent.topic}/{sent.partition}/{sent.offset}"
            if as_json:
                print_json_line({"from": record.coordinates, "to": where, "headers": _shown(outgoing.headers)})
            else:
                headers = ", ".join(f"{name}={text}" for name, text in _shown(outgoing.headers))
                click.echo(printable(f"{record.coordinates} -> {where or f'{components} (dry run)'}: {headers}"))
    return whole


def _send_unit(
    settings: Settings,
    destination: str,
    connection: Connection,
    records: list[RefusedRecord],
    correction: Correction,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Sends a unit that a reader gave up once more, under a new id, in one transaction. True if it could be sent."""
    reading = Reading.of(settings.policy(destination))
    registry = connect_registry(settings.registry_url) if settings.registry_url else None
    try:
        again = unit_again(records, destination, correction, reading, registry, wall_clock_ms())
    except DecodeError as error:
        say(f"uow: the unit at {records[0].coordinates} cannot be sent again: {error.detail}")
        return False
    if not dry_run:
        with connection.unit(destination, again.id) as unit:
            for component in again.components:
                unit.send(component)
    if as_json:
        print_json_line({"from": again.coordinates, "id": again.id, "components": len(again.components)})
    else:
        where = f"{again.id} (dry run)" if dry_run else again.id
        click.echo(printable(f"{again.coordinates} -> unit {where}: {len(again.components)} components"))
    return True


def _shown(headers: list[tuple[str, bytes | None]]) -> list[tuple[str, str | None]]:
    return [(name, None if raw is None else raw.decode("utf-8", "backslashreplace")) for name, raw in headers]
