"""The command `uow`: its subcommands with one line of help each, and how errors become messages and exit statuses (P-01 to P-05).

Belongs here: the click group. Each subcommand is `uow/cli/<name>_command.py`, a click command object called
`command`, imported when it is called: `uow --help` and `uow worker` never import PySpark. Options that several subcommands
share are in `uow.cli.options`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

import click

from uow.extras import advice, extra_of
from uow.schemas.error_classes import ConfigError, UowError
from uow.schemas.printable import printable, printable_lines
from uow.terminal.printing import say
from uow.topics.access import explained

COMMANDS = {
    "demo": "the whole story on an embedded broker",
    "broker": "a real single-node Apache Kafka in the foreground",
    "topics": "create missing topics, check existing ones, add partitions",
    "worker": "assemble components into units",
    "send": "produce one unit",
    "read": "read units",
    "groups": "open groups of a destination",
    "show": "one group with its components",
    "release": "deliver now the components that a group holds",
    "cancel": "close a group and send its components to the errors topic",
    "expire": "close a group now, by the expiration policy",
    "extend": "give a group more time",
    "declare-end": "declare which number of a group is the last",
    "waive": "declare numbers of a group that are not needed",
    "remove": "take one component out of a group",
    "erase": "remove the payload of one component of a group",
    "set-aside": "take the record away at which a partition is blocked",
    "adopt": "accept what has changed under strict order",
    "rejected": "refused components of a destination",
    "resubmit": "send refused components again, corrected",
    "migrate": "move a destination to another cluster or other topics",
    "rebuild": "write units of a past interval again, or compare them",
    "rules": "rules of groups: in force, tried, changed, taken back",
    "sink": "write units into Delta tables",
    "audit": "recompute every unit and compare",
    "report": "a page with plots about finished units",
    "sql": "ask the Delta tables a question",
    "prove": "cause faults on a real broker and check that nothing is lost",
    "command-key": "make a key that signs commands",
    "acl": "the rights that each role needs on a cluster with an authorizer",
    "doctor": "check a deployment, with a remedy for each mistake",
    "config": "effective settings, and every mistake in them",
}
"""Name and one line of help of each command, in the order of `uow --help`."""

MODULES = dict.fromkeys(("release", "cancel", "expire", "extend", "declare-end", "waive", "remove", "erase"), "repair")
MODULES |= {"set-aside": "set_aside", "command-key": "command_key"}
"""Module of each command that shares one, or has another name; the module keeps its commands by name in `commands`."""

FAILED = 1
WRONG_USAGE = 2


class PrintableFormatter(logging.Formatter):
    """Log lines may quote what records say: a terminal prints it, and executes nothing of it."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """On one line: a line end within it would begin a line that nobody logged. Those of a traceback stay."""
        return printable(super().formatMessage(record))


@contextmanager
def private_files() -> Iterator[None]:
    """Whatever a command writes, and what the programs write that it starts, is for its user alone: any of it may hold payloads."""
    before = os.umask(0o077)
    os.umask(before | 0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """SIGTERM ends a command as it ends a program: with exit status 143, and all blocks left, so that a reader leaves its group.

    Without that the first process of a container ignores it, and a reader's partitions wait for its session time-out. A command that ends in a way of
    its own replaces it.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # a second one ends at once
        told.append(number)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if told:  # Kafka's library may have lost the exception, or told it as Ctrl-C
            raise SystemExit(128 + told[0])


class LazyGroup(click.Group):
    """A click group that knows its commands by name, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in MODULES:
            command = import_module(f"uow.cli.{MODULES[cmd_name]}_command").commands[cmd_name]
        else:
            command = import_module(f"uow.cli.{cmd_name}_command").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands for `uow --help`, from the table, so that no command is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Runs a command; an error of this project is printed as its message, without a traceback.

        Exit status 2 where the configuration or an argument is wrong, else 1. A character that standard output cannot encode is written as an escape.
        """
        with private_files(), ending_at_sigterm():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> object:
        _escape_what_cannot_be_encoded()
        if logging.lastResort is not None:  # where a command has set up no log
            logging.lastResort.setFormatter(PrintableFormatter())
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            for complaint in error.complaints:
                say(f"uow: {complaint}")
            ctx.exit(WRONG_USAGE)
        except UowError as error:
            say(f"uow: {type(error).__name__}: {error}")
            ctx.exit(FAILED)
        except UnicodeEncodeError as error:
            if error.encoding != "utf-8":
                raise
            say(f"uow: {error.object!r} is not UTF-8")
            ctx.exit(WRONG_USAGE)
        except ModuleNotFoundError as error:
            extra = extra_of(error.name or "")
            if extra is None:
                raise
            say(f"uow: {advice(extra)}")
            ctx.exit(FAILED)
        except Exception as error:
            if _is_missing_part(error):
                say(f"uow: {error}")
            elif _is_kafka_error(error):
                say(f"uow: Kafka: {_kafka_text(error)}")
            else:
                raise
            ctx.exit(FAILED)


def _escape_what_cannot_be_encoded() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_missing_part(error: Exception) -> bool:
    """True if the jars or Java are missing; such an error's message says what to install."""
    names = {"uow.jvm.jars": "JarsMissing", "uow.jvm.java": "JavaMissing"}
    return any(
        module in sys.modules and isinstance(error, getattr(sys.modules[module], name))
        for module, name in names.items()
    )


def _is_kafka_error(error: Exception) -> bool:
    kafka = sys.modules.get("confluent_kafka")
    return kafka is not None and isinstance(error, kafka.KafkaException)


def _kafka_text(error: Exception) -> str:
    """The text of Kafka's error; when no broker answers, also which setting to look at."""
    cause = error.args[0]
    if cause.code() in (cause._TRANSPORT, cause._TIMED_OUT, cause._ALL_BROKERS_DOWN, cause._RESOLVE):
        return f"{cause.str()}; `uow config show` prints application.bootstrap_servers"
    return explained(cause.name(), cause.str())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="uow")
def main() -> None:
    """Units of work for Apache Kafka: messages sent as one unit arrive as one unit, whole and in order."""
