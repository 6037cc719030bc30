"""Options that several commands share, with one spelling and one meaning.

Belongs here: click decorators. Does not belong here: what one command alone takes.
"""

from __future__ import annotations

from pathlib import Path

import click

from uow.config import DEFAULT_FILE, Settings, load


def _load(ctx: click.Context, param: click.Parameter, value: Path | None) -> Settings:
    return load(value)


_FILE = click.Path(dir_okay=False, path_type=Path)
_FILE_HELP = f"Configuration; without it {DEFAULT_FILE} of the working directory, if there is one."

config_option = click.option("-c", "--config", "settings", type=_FILE, callback=_load, metavar="FILE", help=_FILE_HELP)
"""`-c FILE`: hands the command `settings: Settings`, read and checked."""

config_file_option = click.option("-c", "--config", "path", type=_FILE, metavar="FILE", help=_FILE_HELP)
"""`-c FILE`: hands the command `path: Path | None`, unread."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""`--json`: hands the command `as_json: bool`."""
