"""Words of records reach a terminal with escapes, wherever the log of a worker or of a command quotes them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from uow.cli.main import PrintableFormatter
from uow.processor.shell.worker import set_up_log
from uow.terminal.printing import printable, printable_json

EXECUTED = ("\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "\u202etxt.exe", "\u2066x", "\r", "\x08")
"""A title, an erased screen in 7 and in 8 bits, turned text, an overwritten line."""


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger; the root's handlers are put back in the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield logging.getLogger("uow.worker")
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("words", EXECUTED)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_worker_s_log_escapes_messages_and_tracebacks(
    log: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    set_up_log()
    log.warning("id %s", words)
    try:
        raise ValueError(words)
    except ValueError:
        log.exception("failed")
    told = capsys.readouterr().err
    assert "failed" in told
    assert words not in told


@pytest.mark.parametrize("words", EXECUTED)
def test_a_command_s_log_escapes_them_too(words: str) -> None:
    record = logging.LogRecord("uow", logging.WARNING, "", 0, "id %s\nnext", (words,), None)
    told = PrintableFormatter().format(record)
    assert words not in told
    assert told.endswith("\\nnext")


FORGED = "x\n2026-01-01 00:00:00 [info] forged"


@pytest.mark.parametrize("given", ["message", "value", "command"])
def test_words_of_a_record_begin_no_line(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """A traceback keeps its lines."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    set_up_log()
    if given == "command":
        logging.getLogger().handlers[0].setFormatter(PrintableFormatter())
    try:
        raise ValueError("failed")
    except ValueError:
        if given == "value":
            structlog.get_logger("uow.worker").exception("id", id=FORGED)
        else:
            log.exception("id %s", FORGED)
    told = capsys.readouterr().err.splitlines()
    assert len([line for line in told if "forged" in line]) == 1
    assert not any(line.startswith("2026-01-01 00") for line in told)
    assert any("Traceback" in line for line in told)
    assert any(line.endswith("ValueError: failed") for line in told)


@pytest.mark.parametrize("text", ["10\u00a0000", "\u3000一", "👩\u200d🚀", "\u0645\u06cc\u200c\u062e", "Zoë"])
def test_ordinary_text_of_other_scripts_stays(text: str) -> None:
    assert printable(text) == text
    assert printable_json(text) == text
