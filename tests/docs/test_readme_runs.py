"""README's snippets, run in the order of the page as a stranger pastes them: each shell block in a terminal of its own, each program saved
under the name that the page gives it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.processes import Process, free_port
from uow.jvm import jars, java

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")

NOT_RUN = ("make ",)
"""Commands that CI runs by themselves."""
STAY = {"uow broker": "broker ready on", "uow worker": "worker a ready", "python receive.py": "flash drive"}
"""Commands that run until Ctrl-C, and the text that each is waited for."""

BUSY, ATTEMPTS = "ReconnectTimeoutError", 5
"""On a machine with much other work Kafka may not answer within the 6 s that a program waits by default: it has sent nothing then, and is started again."""


def substitutions(port: int) -> dict[str, str]:
    """All that differs from the page: the port. The folder is one with `examples` and `.venv` of the checkout."""
    return {"localhost:9092": f"localhost:{port}", "uow broker": f"uow broker --port {port}"}


def fences() -> list[tuple[str, str, str]]:
    """Language, text, and the paragraph before each fenced block, in the order of the page."""
    tokens: list[Token] = MarkdownIt("commonmark").enable("table").parse(PAGE)
    found, before = [], ""
    for token in tokens:
        if token.type == "inline":
            before = token.content
        elif token.type == "fence":
            found.append((token.info, token.content, before))
    return found


def commands(block: str) -> list[str]:
    """The commands of a shell block: lines, joined where one goes on."""
    return [each for each in re.sub(r"(\\|\|)\n", lambda end: f"{end[1]}\0", block).splitlines() if each.strip()]


def console_producer(folder: Path) -> None:
    """Kafka's own command, of Kafka's own jars; it shares nothing with the product."""
    path = ":".join(str(jar) for kind in ("broker", "tools") for jar in jars.class_path(kind))
    program = folder / "kafka-console-producer.sh"
    program.write_text(
        f'#!/bin/sh\nexec {java.find().executable} -cp {path} org.apache.kafka.tools.ConsoleProducer "$@"\n'
    )
    program.chmod(0o755)


class Stranger:
    """A folder with terminals.

    Args:
        folder: Where programs are saved and commands typed.
        spawn: Starts a command.
    """

    def __init__(self, folder: Path, spawn: Callable[..., Process]) -> None:
        self.folder, self.spawn, self.port = folder, spawn, free_port()
        for name, target in (("examples", ROOT / "examples"), (".venv", Path(sys.prefix))):
            (folder / name).symlink_to(target) if name == ".venv" else shutil.copytree(
                target, folder / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__")
            )
        settings = folder / "examples" / "uow.toml"
        settings.write_text(self.typed(settings.read_text()))
        (folder / "bin").mkdir()
        console_producer(folder / "bin")
        self.running: list[Process] = []

    def typed(self, text: str) -> str:
        """A text of the page with this run's port."""
        for old, new in substitutions(self.port).items():
            text = text.replace(old, new)
        return text

    def save(self, program: str, paragraph: str) -> None:
        """Saves a program under the name in the paragraph before it."""
        (name,) = re.findall(r"as `(\w+\.py)`", paragraph)
        (self.folder / name).write_text(self.typed(program))

    def type(self, command: str) -> None:
        """Types a command and waits: for its end, or for the text of one that stays."""
        env = {
            "PATH": f"{self.folder / '.venv' / 'bin'}:{self.folder / 'bin'}:{os.environ['PATH']}",
            "UOW_WORKER__WEB": "127.0.0.1:0",
        }
        text = self.typed(command.replace("\0", "\n"))
        ready = next((ready for start, ready in STAY.items() if command.startswith(start)), None)
        if ready is not None:
            started = self.spawn("bash", "-c", f"exec {text}", env=env, cwd=self.folder)
            self.running.append(started)
            started.wait_output(ready)
            return
        for _ in range(ATTEMPTS):
            done = self.spawn("bash", "-euo", "pipefail", "-c", text, env=env, cwd=self.folder)
            if done.wait() == 0 or BUSY not in done.output:
                break
        assert done.status == 0, f"{command}: {done.output}"

    def leave(self) -> None:
        """Ctrl-C in each terminal, the last one first."""
        for program in reversed(self.running):
            program.signal(signal.SIGINT)
            program.wait()


@pytest.fixture
def stranger(tmp_path: Path, spawn: Callable[..., Process]) -> Stranger:
    return Stranger(tmp_path, spawn)


@pytest.mark.slow
def test_the_snippets_run_in_the_order_of_the_page(stranger: Stranger) -> None:
    for language, text, paragraph in fences():
        match language:
            case "python":
                stranger.save(text, paragraph)
            case "sh":
                for command in commands(text):
                    if not command.startswith(NOT_RUN):
                        stranger.type(command)
    *_, receiver = stranger.running
    receiver.wait_output("order-7")
    printed = [line.partition(" ") for line in receiver.output.splitlines()]
    assert [rest for _, _, rest in printed] == [
        "[{'item': 'flash drive'}, {'item': 'book'}]",
        "[{'item': 'lamp'}, {'item': 'bulb'}]",
    ]
    assert printed[1][0] == "order-7"
    stranger.leave()


def test_each_block_of_the_page_is_of_a_kind_that_is_checked() -> None:
    """Else one could stand there that nobody runs."""
    assert {language for language, _, _ in fences()} == {"mermaid", "python", "sh", "toml"}
    typed = [command for language, text, _ in fences() if language == "sh" for command in commands(text)]
    assert all(any(command.startswith(start) for command in typed) for start in (*STAY, *NOT_RUN))
    assert any("kafka-console-producer.sh" in command for command in typed)
