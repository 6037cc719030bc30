"""The command line as a whole: lazy commands, exit statuses, errors in words (P-01 to P-05)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from uow.cli import main as cli
from uow.schemas.error_classes import ConfigError, DecodeError


def test_help_names_every_command_and_imports_none() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from uow.cli.main import main\n"
        "result = CliRunner().invoke(main, ['--help']); assert not result.exit_code; print(result.output)\n"
        "heavy = ('pyspark', 'faust')\n"
        "assert not [name for name in sys.modules if name.endswith('_command') or name in heavy]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, line in cli.COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert line in done.stdout


def test_every_command_of_the_table_has_its_module() -> None:
    folder = Path(cli.__file__).parent
    assert {path.stem.removesuffix("_command") for path in folder.glob("*_command.py")} <= {
        *cli.COMMANDS,
        *cli.MODULES.values(),
    }


def test_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli.main, ["assemble"]).exit_code == cli.WRONG_USAGE


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("worker.web", "x", "must be nice"), 2, "uow: worker.web = 'x': must be nice"),
        (DecodeError("uow-priority", "no number"), 1, "uow: DecodeError: uow-priority: no number"),
        (ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"), 1, "(extra 'spark'): run `make setup`"),
    ],
)
def test_errors_of_ours_are_told_in_words_without_traceback(error: Exception, status: int, text: str) -> None:
    @click.group(cls=cli.LazyGroup)
    def group() -> None:
        raise error

    result = CliRunner().invoke(group, ["config"])
    assert result.exit_code == status
    assert text in result.stderr


def test_kafkas_errors_are_told_in_words_without_traceback() -> None:
    from confluent_kafka import KafkaError, KafkaException

    @click.group(cls=cli.LazyGroup)
    def group() -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "nobody there"))

    result = CliRunner().invoke(group, ["config"])
    assert (result.exit_code, result.stderr) == (
        1,
        "uow: Kafka: nobody there; `uow config show` prints application.bootstrap_servers\n",
    )


def test_errors_that_are_nobodys_stay_bare() -> None:
    @click.group(cls=cli.LazyGroup)
    def group() -> None:
        raise RuntimeError("a bug")

    assert isinstance(CliRunner().invoke(group, ["config"]).exception, RuntimeError)


def test_an_argument_that_is_not_utf8_is_told_in_words() -> None:
    """The command line passes the bytes on as surrogates."""

    @click.group(cls=cli.LazyGroup)
    def group() -> None:
        "\udcff".encode()

    result = CliRunner().invoke(group, ["config"])
    assert (result.exit_code, result.stderr) == (cli.WRONG_USAGE, "uow: '\\udcff' is not UTF-8\n")


def test_what_the_terminal_cannot_encode_is_written_as_an_escape() -> None:
    @click.group(cls=cli.LazyGroup)
    def group() -> None:
        click.echo("Zoë ✓")

    result = CliRunner(charset="latin-1").invoke(group, ["config"])
    assert result.stdout_bytes.startswith("Zoë \\u2713\n".encode("latin-1")), result.exception
