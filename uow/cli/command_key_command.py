"""`uow command-key`: keys that sign commands.

Belongs here: options and printing. Does not belong here: the file (`uow.config.command_key_files`), what a key may (`uow.topics.command_keys`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from uow.config.command_key_files import make_key
from uow.config.command_key_settings import is_key_name
from uow.topics.command_keys import ALL_VERBS, MAX_NAME_CHARS
from uow.topics.commands import Verb


@click.group()
def command() -> None:
    """Make keys that sign commands."""


@command.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="File of the private key.")
@click.option(
    "--verb",
    "verbs",
    type=click.Choice([*(each.value for each in Verb), ALL_VERBS]),
    multiple=True,
    help="A command that it may sign; may be repeated. [default: all]",
)
def create(name: str, out: Path, verbs: tuple[str, ...]) -> None:
    """Make the key NAME: write the private key to a new file, and print the lines of uow.toml with the public one.

    NAME stands in the trail of commands. The lines are for the workers of a destination, and for whoever audits it; the file is for the program
    that sends commands, which names it by application.command_key, or by UOW_APPLICATION__COMMAND_KEY.
    """
    if not is_key_name(name) or {'"', "\\"} & {*name}:
        raise click.UsageError(f"a name has 1 to {MAX_NAME_CHARS} printable characters, without quotes and backslashes")
    signer = make_key(out, name)
    listed = ", ".join(f'"{each}"' for each in verbs or (ALL_VERBS,))
    click.echo(f'[[destinations.NAME.command_keys]]\nname = "{name}"\npublic = "{signer.public}"\nverbs = [{listed}]')
    click.echo("# it counts from then on: write a moment at which all workers will have started with these lines")
    click.echo(f"from = {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")


commands = {"command-key": command}
"""The click command by its name."""
