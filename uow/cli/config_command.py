"""`uow config show|check`: effective settings with their origin, or every complaint at once."""

from __future__ import annotations

from pathlib import Path

import click

from uow.cli.main import WRONG_USAGE
from uow.cli.options import config_file_option, config_option, json_option
from uow.config.loading import Settings, load
from uow.schemas.error_classes import Complaint, ConfigError
from uow.terminal.printing import print_json, print_table, printable
from uow.topics.strict_order import HAZARDS, ROWS


@click.group()
def command() -> None:
    """Show the effective settings and where each came from, or check the configuration."""


@command.command()
@config_option
@json_option
def show(settings: Settings, as_json: bool) -> None:
    """Print every effective setting and where it came from. Secrets are masked.

    With strict order also: what it forces and refuses, and the hazards that nobody can prevent.
    """
    strict = [name for name, policy in settings.destinations.items() if policy.strict_order]
    if as_json:
        shown = {each.name: {"value": each.shown, "origin": each.origin} for each in settings.effective.values()}
        print_json(shown | (_strict_order(settings, strict) if strict else {}))
        return
    print_table(
        ("setting", "value", "from"),
        [(each.name, _text(each.shown), each.origin) for each in settings.effective.values()],
    )

    if strict:
        click.echo(f"\nstrict order: {', '.join(strict)}")
        for override in settings.overrides:
            click.echo(printable(str(override)))
        print_table(("setting or use", "reaction", "effective"), ROWS)
        click.echo("\nhazards, which are not prevented")
        for hazard in HAZARDS:
            click.echo(f"- {hazard}")


def _strict_order(settings: Settings, strict: list[str]) -> dict[str, object]:
    return {
        "strict_order": {
            "destinations": strict,
            "overridden": [
                {
                    "destination": each.destination,
                    "setting": each.key,
                    "requested": each.requested,
                    "effective": each.effective,
                }
                for each in settings.overrides
            ],
            "rows": [each._asdict() for each in ROWS],
            "hazards": list(HAZARDS),
        }
    }


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(str, value))
        case "":
            return '""'
        case _:
            return str(value)


@command.command()
@config_file_option
@json_option
@click.pass_context
def check(ctx: click.Context, path: Path | None, as_json: bool) -> None:
    """Report every mistake in the configuration at once; exit 2 when there is one. Warnings alone do not count."""
    complaints: tuple[Complaint, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        settings = load(path)
        warnings = settings.warnings
        if settings.rules.source:
            complaints, more = _about_rules(settings)
            warnings += more
    except ConfigError as error:
        complaints = error.complaints
    if as_json:
        rows = [{"setting": each.setting, "value": each.value, "rule": each.rule} for each in complaints]
        print_json({"complaints": rows, "warnings": list(warnings)})
    else:
        for complaint in complaints:
            click.echo(printable(str(complaint)))
        for warning in warnings:
            click.echo(printable(f"warning: {warning}"))
        if not complaints:
            click.echo("configuration is good")
    ctx.exit(WRONG_USAGE if complaints else 0)


def _about_rules(settings: Settings) -> tuple[tuple[Complaint, ...], tuple[str, ...]]:
    """Complaints about the configured rules, and a warning if they cannot be read from here."""
    from uow.ops.rules import RuleDesk
    from uow.processor.rules.changes import RulesUnavailable

    desk = RuleDesk(settings)
    try:
        rules = desk.read()
        nothing = () if rules.version else (f"rules.source: {desk.source().name} has no rules yet",)
        return tuple(desk.complaints(rules)), nothing
    except RulesUnavailable as error:
        return (), (f"rules.source: {error}",)
