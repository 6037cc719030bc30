"""`uow set-aside D PLACE --why TEXT`: lets a blocked partition go on without the record at which it stands (`docs/operations.md#a-partition-is-blocked`).

Belongs here: which partition of `D.commands` the command goes to, and the answer. Does not belong here: setting aside
(`uow.processor.engine.set_aside`, `uow.processor.kafka.router`).
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import click

from uow.cli.main import FAILED
from uow.cli.options import DurationType, by_option, command_id_option, config_option, json_option
from uow.cli.repair_command import as_data
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader
from uow.ops.group_commands import Reply, UnansweredError, command_client
from uow.processor.engine.ports import Tp
from uow.terminal.printing import print_json_line, printable, say
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import Command, RecordPlace, Verb


class PlaceType(click.ParamType):
    """Coordinates of a record; the command gets a `RecordPlace`."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> RecordPlace:
        found = RecordPlace.parse(value)
        if found is None:
            self.fail(f"{value!r} is no place of a record: TOPIC/PARTITION/OFFSET", param, ctx)
        return found


@click.command("set-aside")
@click.argument("destination")
@click.argument("place", metavar="TOPIC/PARTITION/OFFSET", type=PlaceType())
@click.option(
    "--why", required=True, metavar="TEXT", help="The reason; it is kept in the audit trail and with the record."
)
@by_option
@command_id_option
@click.option(
    "--timeout",
    type=DurationType(),
    default="30s",
    show_default=True,
    metavar="SPAN",
    help="How long to wait for the answer.",
)
@config_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    destination: str,
    place: RecordPlace,
    why: str,
    by: str,
    command_id: str | None,
    timeout: int,
    settings: Settings,
    as_json: bool,
) -> None:
    """Let a blocked partition go on without the record at which it stands: the record goes to DESTINATION's topic of refused components.

    The page of the worker and its log name the record of a blocked partition. It is tried once more, and set aside if it fails again. A
    command about any other record does nothing. A record of a router's input goes to the refused components of the DESTINATION that is named.

    Exit 0 when it is done, else 1.
    """
    settings.policy(destination)
    is_of_router = place.topic in {topic for each in settings.routers.values() for topic in each.inputs}
    if not is_of_router and place.topic != (own := DestinationTopics(settings.application_id, destination).components):
        raise click.UsageError(f"{place.topic} is neither {own} nor an input of a router")
    if is_of_router and (at := _routed_to(settings, place)) != place.offset:
        say(f"uow: {place} does not block its partition, which is {_at(at)}: nothing is done")
        ctx.exit(FAILED)
    asked = Command((command_id or str(uuid4())).encode(), Verb.SET_ASIDE, b"", why, by, source=str(place))
    reply = _answer(settings, destination, asked, place, is_of_router, timeout / 1000)
    if reply is None:
        if is_of_router and (at := _routed_to(settings, place)) != place.offset:
            say(f"uow: {place} blocks its partition no longer, which is {_at(at)}: nothing was done")
        ctx.exit(FAILED)
    answer = reply.answer
    if as_json:
        print_json_line(as_data(reply) | {"record": str(place)})
    else:
        click.echo(f"{answer.verb} {place}: {'done' if answer.done else 'not done'}: {printable(answer.text)}")
    if not answer.done:
        ctx.exit(FAILED)


def _answer(
    settings: Settings, destination: str, asked: Command, place: RecordPlace, is_of_router: bool, timeout_s: float
) -> Reply | None:
    with command_client(settings, destination, 1, timeout_s) as client:
        try:
            return client.ask_aside(asked, None if is_of_router else place.partition, place.key, timeout_s)
        except UnansweredError as error:
            say(f"uow: {error} To ask again without executing it twice, add --command-id {asked.id.decode()}")
            return None


def _routed_to(settings: Settings, place: RecordPlace) -> int | None:
    """The position of the routers in the input."""
    tp = Tp(place.topic, place.partition)
    with log_reader(settings, of_routers=True) as reader:
        return reader.committed([tp])[tp].offset


def _at(position: int | None) -> str:
    return "not read yet by any router" if position is None else f"at {position}"


commands = {"set-aside": command}
"""The click command by its name."""
