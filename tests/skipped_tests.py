"""A pytest plugin: skipped tests fail a run with `--no-skips`, as in `make ci`; other runs say which tools are wanting (decision 112)."""

from __future__ import annotations

import re
from collections import Counter

import pytest

NO_TOOL = re.compile(r"^no (.+?) on the path")
"""How each test says which tool it lacks."""
MAY_SKIP = (re.compile(r"^no Docker engine answers$"),)
"""Reasons that fail no run: what CI cannot install."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails the run")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Lets the run fail, in the process that has the results of all."""
    config = session.config
    if config.option.no_skips and session.exitstatus == pytest.ExitCode.OK and not hasattr(config, "workerinput"):
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and _unwanted(reporter):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names each test that fails the run by this, and in one line the tools that are wanting."""
    if config.option.no_skips and (skipped := _unwanted(terminalreporter)):
        terminalreporter.write_sep("=", "skipped tests, which fail this run (--no-skips)", red=True)
        for report in skipped:
            terminalreporter.write_line(f"SKIPPED {report.nodeid}: {_reason(report)}")
    found = map(NO_TOOL.search, map(_reason, terminalreporter.getreports("skipped")))
    if wanting := Counter(each[1] for each in found if each):
        told = ", ".join(f"{tool} ({count})" for tool, count in sorted(wanting.items()))
        terminalreporter.write_line(f"tests left out for want of a tool: {told}; `make ci-tools` installs the tools")


def _reason(report: pytest.TestReport) -> str:
    return str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""


def _unwanted(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    skipped = reporter.getreports("skipped")
    return [report for report in skipped if not any(each.search(_reason(report)) for each in MAY_SKIP)]
