"""`uow acl show`: the rights that each role needs on a cluster with an authorizer.

Belongs here: options and printing. Does not belong here: the rights (`uow.topics.access`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import click

from uow.cli.options import config_option, destinations_option, json_option
from uow.config.loading import Settings
from uow.ops.access import OwnNames, commands_text, rights
from uow.terminal.printing import print_json, print_table, printable
from uow.topics.access import ROLES, Binding, Operation, Role, has_transactions
from uow.topics.catalogue import DestinationTopics


@click.group()
def command() -> None:
    """Show the rights that each role needs."""


@command.command()
@click.argument("roles", type=click.Choice([each.value for each in Role]), nargs=-1, metavar="ROLE...")
@click.option("--all", "every", is_flag=True, help="Each role by itself.")
@destinations_option("all that are configured")
@click.option("--group", default="GROUP", help="Consumer group of a reader or forwarder.")
@click.option(
    "--client",
    metavar="PREFIX",
    help="What the transactional ids of a client begin with: its `transactional_id`, else its `client_id`, else uow-, "
    "which is the default. Commands of --principal need it said, since who may use an id can fence those who do.",
)
@click.option("--from", "reads", multiple=True, metavar="TOPIC", help="Topic that a forwarder reads; may be repeated.")
@click.option(
    "--to", "writes", multiple=True, metavar="TOPIC", help="Topic that a forwarder or caller writes; may be repeated."
)
@click.option("--principal", metavar="NAME", help="Print `kafka-acls` commands for it, such as User:megazon.")
@config_option
@json_option
def show(
    roles: tuple[str, ...],
    every: bool,
    chosen: tuple[str, ...],
    group: str,
    client: str | None,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    principal: str | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Print the least rights with which a ROLE runs; several roles are those of one principal.

    Roles: producer, caller, forwarder, canceller, reader, worker, router, operator, sink, audit, rules-author. Nothing is asked of a broker, and
    nothing is changed.
    """
    if every == bool(roles):
        raise click.UsageError("name a role, or say --all")
    if principal is not None and client is None and any(map(has_transactions, map(Role, roles or Role))):
        raise click.UsageError(
            "with --principal, say with --client what the transactional ids of its clients begin with"
        )
    own = OwnNames(group, "uow-" if client is None else client, reads or ("INPUT",), writes or ("OUTPUT",))
    sets = [(each,) for each in Role] if every else [tuple(Role(each) for each in roles)]
    found = [(asked, rights(settings, asked, chosen, own)) for asked in sets]
    if as_json:
        print_json([_row(asked, binding, why) for asked, rows in found for binding, why in rows.items()])
    elif principal is not None:
        for line in sorted({line for _, rows in found for line in _commands(settings, principal, rows)}):
            click.echo(printable(line))
    else:
        for asked, rows in found:
            click.echo("; ".join(f"{role}: {ROLES[role]}" for role in asked))
            print_table(
                ("resource", "name", "pattern", "operation", "for"), [(*each, why) for each, why in rows.items()]
            )
            click.echo()
        may_write = {each.name for _, rows in found for each in rows if each.operation == Operation.WRITE}
        for name, policy in settings.destinations.items():
            if DestinationTopics("", name).commands in may_write:
                click.echo(printable(f"{name}: {commands_text(name, policy)}"))


def _row(roles: Iterable[Role], binding: Binding, why: str) -> dict[str, object]:
    return {"roles": [*roles], **binding._asdict(), "for": why}


def _commands(settings: Settings, principal: str, rows: Iterable[Binding]) -> Iterable[str]:
    """A `kafka-acls` command for each resource."""
    operations: dict[tuple[str, str, str], list[str]] = {}
    for each in rows:
        operations.setdefault((each.resource, each.name, each.pattern), []).append(each.operation)
    for (resource, name, pattern), allowed in operations.items():
        words = ["kafka-acls.sh", "--bootstrap-server", settings.bootstrap_servers, "--add"]
        words += ["--allow-principal", principal, f"--{resource}", name]
        words += ["--resource-pattern-type", pattern] if pattern != "literal" else []
        yield shlex.join([*words, *(word for one in allowed for word in ("--operation", one))])
