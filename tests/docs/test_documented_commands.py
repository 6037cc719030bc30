"""Each command that README and the pages of `docs/` name exists, and takes the options that they give it; so does each target of make."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

from uow.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = {*re.findall(r"^([a-z-]+):(?!=).*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)}
MAKE_VARIABLE = re.compile(r"[A-Z_]+=")


def code(page: Path) -> Iterator[str]:
    """Code spans, and the lines of fenced blocks, continued ones joined."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence":
            yield from (line.removeprefix("$ ").strip() for line in token.content.replace("\\\n", " ").splitlines())
        yield from (child.content for child in token.children or () if child.type == "code_inline")


def named(program: str) -> list[tuple[str, str]]:
    """Page and command line of each use of a program."""
    line = re.compile(rf"{program} (?!\w+:)")  # "uow demo: ..." is a line of its output
    return sorted({(page.name, text) for page in PAGES for text in code(page) if line.match(text)})


def words_of(line: str) -> list[str]:
    """The words after the program's name, without a comment, and up to a pipe, a further command, or what is left out."""
    words = shlex.split(re.split(r" (?:[|;>&]|&&|#) ?", line)[0], comments=True)[1:]
    return [word for word in words if word not in {"...", "…"}]


def check(line: str) -> None:
    """Parses a line as its command would; nothing is run.

    Raises:
        click.UsageError: it does not take that.
        AssertionError: there is no such command.
    """
    command: click.Command = main
    context, words = click.Context(main), words_of(line)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        for name in words[0].split("|"):
            found = command.get_command(context, name)
            assert found is not None, f"{line}: no command {name}"
        command, context = found, click.Context(found, context)
        words.pop(0)
    try:
        _, rest, _ = command.make_parser(context).parse_args([*words])
    except click.BadOptionUsage:  # prose may name an option without its value, or leave that out as "..."
        _, rest, _ = command.make_parser(context).parse_args([*words, "VALUE"])
    assert not rest or any(isinstance(each, click.Argument) for each in command.params), line


@pytest.mark.parametrize(("page", "line"), named("uow"))
def test_each_command_takes_what_the_page_gives_it(page: str, line: str) -> None:
    check(line)


@pytest.mark.parametrize(("page", "line"), named("make"))
def test_each_target_of_make_exists(page: str, line: str) -> None:
    targets = [word for word in words_of(line) if not MAKE_VARIABLE.match(word)]
    assert targets
    assert {*targets} <= TARGETS


@pytest.mark.parametrize(
    "line", ["uow worker --nothing", "uow assemble D", "uow topics make", "uow broker --port 1 more"]
)
def test_a_command_that_does_not_exist_would_be_found(line: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        check(line)


def test_no_text_sends_anybody_to_a_name_that_is_on_no_index() -> None:
    """Neither `uow[worker]`, nor an install that resolves versions."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [
        ROOT / name
        for name in tracked
        if name.endswith((".md", ".py")) and not name.startswith(("tests/", "docs/decisions/"))
    ]
    wrong = re.compile(r"\buow\[\w|pip install (?!--)")
    assert [
        f"{path.relative_to(ROOT)}: {found[0]}" for path in texts for found in wrong.finditer(path.read_text())
    ] == []
