"""`README.md` shows commands that exist, with options that they take, settings that are good, and links that lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from uow.cli.main import main
from uow.config.loading import load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
COMMANDS = [line for line in SHELL.splitlines() if line.startswith("uow ")]


def parsed(line: str) -> dict[str, object]:
    """The values of a command line, as its command takes them; nothing is run."""
    command: click.Command = main
    context = click.Context(main)
    words = shlex.split(line, comments=True)[1:]
    while isinstance(command, click.Group) and not (command.invoke_without_command and words[0].startswith("-")):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{line}: no command {name}"
        command, context = found, click.Context(found, context)
    values, rest, _ = command.make_parser(context).parse_args(words)
    assert not rest or any(isinstance(each, click.Argument) for each in command.params), line
    return values


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_takes_what_the_page_gives_it(line: str) -> None:
    assert parsed(line) is not None


def test_an_option_that_does_not_exist_would_be_found() -> None:
    with pytest.raises(click.UsageError, match="--nothing"):
        parsed("uow worker --nothing")


@pytest.mark.parametrize("line", [line for line in SHELL.splitlines() if line.startswith("make ")])
def test_each_verb_of_make_exists(line: str) -> None:
    verbs = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line.split()[1] in verbs


def test_the_settings_on_the_page_are_good(tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "uow.toml").write_text(settings)
    assert [*load(tmp_path / "uow.toml").destinations] == ["megazon"]


def test_every_link_leads_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-")
        for head in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        file, _, anchor = link.partition("#")
        assert not file or (ROOT / file).exists(), link
        assert file or anchor in anchors, link


def test_every_file_that_a_command_names_is_there() -> None:
    named = re.findall(r"(?:python|-c) (examples/\S+)", SHELL)
    assert named
    assert all((ROOT / name).is_file() for name in named)
