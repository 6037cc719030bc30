"""Options that several commands share, with one spelling and one meaning.

Belongs here: click decorators. Does not belong here: what one command alone takes.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from uow.config import DEFAULT_FILE, Settings, load
from uow.printing import wall_clock_ms


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

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)")
_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Span(click.ParamType):
    """A span of time, `90s`, `5min`, `2h`, `1.5d`; hands the command milliseconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SPAN.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value!r} is no span of time such as 90s, 5min, 2h or 1.5d", param, ctx)
        return round(float(found[1]) * _MS[found[2]])


class Moment(click.ParamType):
    """A moment: ISO 8601 (local time where it names no zone), epoch milliseconds, or `+SPAN` from now; hands the command epoch ms."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = value.strip()
        if text.startswith("+"):
            return wall_clock_ms() + Span().convert(text[1:], param, ctx)
        if text.isdigit() and len(text) > 10:
            return int(text)
        try:
            return round(datetime.fromisoformat(text).timestamp() * 1000)
        except ValueError:
            self.fail(f"{value!r} is no moment: ISO 8601, epoch milliseconds, or +SPAN", param, ctx)
