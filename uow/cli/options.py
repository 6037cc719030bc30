"""Options that several commands share, with one spelling and one meaning.

Belongs here: click decorators. Does not belong here: options of a single command.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import wraps
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uow.config.loading import DEFAULT_FILE, Settings, load
from uow.terminal.printing import wall_clock_ms
from uow.topics.headers import PRODUCER_ID

if TYPE_CHECKING:
    from uow.spark_sink.folders import Folder


def _load(ctx: click.Context, param: click.Parameter, value: Path | None) -> Settings:
    return load(value)


_FILE = click.Path(dir_okay=False, path_type=Path)
_FILE_HELP = f"Configuration file. [default: {DEFAULT_FILE} in the working directory, if there is one]"

config_option = click.option("-c", "--config", "settings", type=_FILE, callback=_load, metavar="FILE", help=_FILE_HELP)
"""`-c FILE`: passes `settings: Settings` to the command, read and checked."""

config_file_option = click.option("-c", "--config", "path", type=_FILE, metavar="FILE", help=_FILE_HELP)
"""`-c FILE`: passes `path: Path | None` to the command, unread."""

by_option = click.option(
    "--by",
    default=getuser,
    metavar="NAME",
    help="Who gives the command; with application.command_key it is the name of the key.  [default: the user]",
)
"""`--by NAME`: passes `by: str` to a command that sends one to workers."""

command_id_option = click.option(
    "--command-id", metavar="ID", help="The id of a command sent before, so that it is not executed twice."
)
"""`--command-id ID`: passes `command_id: str | None`."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""`--json`: passes `as_json: bool` to the command."""

TABLES_HELP = "Folder of the Delta tables; also a URI that Spark knows, such as s3a://BUCKET/FOLDER."


class FolderType(click.ParamType):
    """A folder here or elsewhere; the command gets a `uow.spark_sink.folders.Folder`."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Folder:
        from uow.spark_sink.folders import folder

        found = folder(value)
        if isinstance(found, Path) and found.is_file():
            self.fail(f"{value} is a file", param, ctx)
        return found


tables_option = click.option("--tables", "root", type=FolderType(), required=True, metavar="DIR", help=TABLES_HELP)
"""`--tables DIR`: passes `root: Folder` to the command."""


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--master URL` and `--conf KEY=VALUE`: pass `place: Place` to a command that has `root`, for its Spark session."""

    @click.option("--master", metavar="URL", help="Spark's master, such as spark://HOST:7077. [default: this machine]")
    @click.option(
        "--conf",
        "pairs",
        multiple=True,
        metavar="KEY=VALUE",
        help="A Spark property, before all others; may be repeated.",
    )
    @wraps(command)
    def placed(*arguments: Any, master: str | None, pairs: tuple[str, ...], root: Folder | None, **options: Any) -> Any:
        from uow.spark_sink.folders import RemoteFolder
        from uow.spark_sink.session import Place

        for pair in pairs:
            if "=" not in pair:
                raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--conf")
        conf = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
        schemes = (root.scheme,) if isinstance(root, RemoteFolder) else ()
        return command(*arguments, root=root, place=Place(master, conf, schemes), **options)

    return placed


producer_header_option = click.option(
    "--producer-header",
    default=PRODUCER_ID,
    show_default=True,
    metavar="NAME",
    help="Header that names the sender of a component.",
)
"""`--producer-header NAME`: passes `producer_header: str` to the command."""


def destinations_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--destination D`, repeated: passes `chosen: tuple[str, ...]` to the command.

    Args:
        default: Help text for the destinations that are meant where none is chosen.
    """
    text = f"Only this one; may be repeated. [default: {default}]"
    return click.option("--destination", "chosen", multiple=True, metavar="D", help=text)


_SPAN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ms|s|min|h|d)")
_EPOCH_MS = re.compile(r"[0-9]{11,15}")
_LAST_MOMENT = 253_402_300_799_999
"""The year 9999: the largest timestamp that a table, or a command, can hold."""
_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class DurationType(click.ParamType):
    """A span of time, `90s`, `5min`, `2h`, `1.5d`; the command gets milliseconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SPAN.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value!r} is not a span of time such as 90s, 5min, 2h or 1.5d", param, ctx)
        return round(float(found[1]) * _MS[found[2]])


class TimeType(click.ParamType):
    """A moment: ISO 8601 (local time where it names no zone), epoch milliseconds, or `+SPAN` from now; the command gets epoch milliseconds."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = value.strip()
        moment = -1
        if text.startswith("+"):
            moment = wall_clock_ms() + DurationType().convert(text[1:], param, ctx)
        elif _EPOCH_MS.fullmatch(text):
            moment = int(text)
        else:
            with suppress(ValueError, OverflowError):
                moment = round(datetime.fromisoformat(text).timestamp() * 1000)
        if not 0 <= moment <= _LAST_MOMENT:
            self.fail(
                f"{value!r} is not a moment from 1970 to 9999: ISO 8601, epoch milliseconds, or +SPAN", param, ctx
            )
        return moment
