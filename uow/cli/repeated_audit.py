"""`uow groups D --audit --repeat`: the audit again and again, with metrics (B-71).

Belongs here: repeating and publishing. Does not belong here: what is looked for (`uow.ops.group_audit`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import click
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from uow.config.loading import Settings
from uow.ops.group_audit import Kind, Report, audit
from uow.schemas.error_classes import ConfigError
from uow.terminal.printing import moment_text, print_json_line, printable, say, wall_clock_ms


def repeat(settings: Settings, destination: str, port: int | None, as_json: bool) -> bool:
    """Audits each `audit_every_ms` of the rules until it is interrupted; a change of the parameter holds from the next round on.

    Returns:
        True if the last audit found nothing.

    Raises:
        ConfigError: The parameter is off, or no rules are configured.
    """
    every_ms = _every_ms(settings)
    found_nothing = True
    try:
        with _published(destination, port) as gauges:
            while True:
                report = audit(settings, destination, wall_clock_ms())
                found_nothing = not report.findings
                gauges.show(report)
                _print(report, as_json)
                time.sleep(every_ms / 1000)
                every_ms = _every_ms(settings)
    except KeyboardInterrupt:
        return found_nothing


def _every_ms(settings: Settings) -> int:
    from uow.ops.rules import RuleDesk  # needs the extra `rules`

    every_ms = RuleDesk(settings).read().parameter("audit_every_ms")
    if not every_ms:
        raise ConfigError("parameter.audit_every_ms", "", "is off in the rules, so there is nothing to repeat")
    return every_ms


class _Gauges:
    """`uow_orphans` and `uow_audit_findings` of one destination."""

    def __init__(self, destination: str, registry: CollectorRegistry) -> None:
        orphans = Gauge("uow_orphans", "Components without a group.", ["destination"], registry=registry)
        text = "Findings of the last audit, by kind."
        self._findings = Gauge("uow_audit_findings", text, ["destination", "kind"], registry=registry)
        self._orphans, self._destination = orphans.labels(destination), destination

    def show(self, report: Report) -> None:
        """Takes the result of an audit."""
        counts = Counter(each.kind for each in report.findings)
        self._orphans.set(counts[Kind.COMPONENT_WITHOUT_GROUP])
        for kind in Kind:
            self._findings.labels(self._destination, kind.value).set(counts[kind])


@contextmanager
def _published(destination: str, port: int | None) -> Iterator[_Gauges]:
    """Serves the gauges on the loopback address, if a port is given."""
    registry = CollectorRegistry()
    gauges = _Gauges(destination, registry)
    if port is None:
        yield gauges
        return
    server, thread = start_http_server(port, "127.0.0.1", registry)
    say(f"uow: metrics on http://127.0.0.1:{server.server_port}/metrics")
    try:
        yield gauges
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        print_json_line({"findings": [each.row() for each in report.findings], "left_out": report.left_out})
        return
    click.echo(f"{moment_text(wall_clock_ms())}: {len(report.findings)} findings")
    for each in report.findings:
        about = f"{each.kind.value} at {each.where}: {each.id} generation {each.generation}: {each.detail}"
        click.echo(printable(about))
