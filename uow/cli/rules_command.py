"""`uow rules show|check|put|history|revert|refresh|rehearse`: the rules of groups as reviewed data (B-19, B-204, B-214)."""

from __future__ import annotations

import getpass
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from uow.cli.main import WRONG_USAGE
from uow.cli.options import TimeType, config_option, json_option
from uow.config.loading import Settings
from uow.ops.rehearsal import RowFigures
from uow.ops.rules import RuleDesk
from uow.processor.rules.changes import Difference, differences
from uow.processor.rules.columns import told
from uow.processor.rules.group_keys import on_no_key
from uow.processor.rules.rule_file import written
from uow.processor.rules.rule_set import RowVersion, RuleSet, RuleTables
from uow.schemas.error_classes import Complaint, ConfigError
from uow.terminal.printing import moment_text, print_json, print_table, printable, wall_clock_ms
from uow.topics.rules import DEFAULT_ROW, Change, Rule

_PATIENCE_S = 600.0
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _author_options(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "Who makes the change. [default: the file's author; of a revert, the user]"
    command = click.option("--author", default="", metavar="NAME", help=text)(command)
    return click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")(command)


@click.group()
def command() -> None:
    """Show the rules of groups, check them, change them, take changes back."""


@command.command()
@config_option
@json_option
@click.option("--version", type=click.IntRange(1), help="The rules as they were at this version.")
@click.option("--toml", "as_toml", is_flag=True, help="Print the whole set as a file that `put` takes.")
def show(settings: Settings, as_json: bool, version: int | None, as_toml: bool) -> None:
    """Print the rules in force, or those of a version: rules in the order in which they are asked, and their rows."""
    desk = RuleDesk(settings)
    everything = desk.read()
    rules = desk.in_force(everything) if version is None else everything.as_of(version)
    if as_toml:
        click.echo(written(rules), nl=False)
    elif as_json:
        print_json(_set_json(rules, everything))
    else:
        _print_set(rules)
        if version is None:
            _print_faults(desk, rules, everything)


def _print_faults(desk: RuleDesk, rules: RuleSet, everything: RuleSet) -> None:
    """Says what of the rules takes no effect."""
    if rules.version < everything.version:
        click.echo(f"version {everything.version} took no effect: `uow rules history` says why", err=True)
    elif desk.faults(rules):
        click.echo(f"version {rules.version} has faults, and none is without: `uow rules history` names them", err=True)
    for router, why in desk.held(rules).items():
        click.echo(printable(f"router {router} holds its inputs: {why}"), err=True)


def _set_json(rules: RuleSet, everything: RuleSet) -> dict[str, Any]:
    tables: dict[str, list[dict[str, Any]]] = {"rule": [], "row": [], "delay": [], "source": [], "parameter": []}
    for key, values in rules.content().items():
        tables[key[0]] += [told(value, ("version",)) for value in values]
    return {"version": rules.version, "latest_version": everything.version, **tables}


def _print_set(rules: RuleSet) -> None:
    for change in rules.tables.changes:
        if change.version == rules.version:
            click.echo(printable(_headline(change)))
    columns = (
        "rule",
        "row",
        "name",
        "destination",
        "target",
        "complete when",
        "give up when",
        "then",
        "holds",
        "groups",
    )
    rows = [
        (
            rule.rule_id,
            *_row_cells(each, rule.destination),
            _groups(rules, rule) if each.row.routing_name == DEFAULT_ROW else "",
        )
        for rule in rules.rules
        for each in rules.row_versions()
        if each.row.rule_id == rule.rule_id
    ]
    print_table(columns, rows)
    if not rules.version:
        click.echo("no rules", err=True)


def _headline(change: Change) -> str:
    back = f", as version {change.reverts_to} was" if change.reverts_to else ""
    return f"version {change.version}, {moment_text(change.changed_at_ms)}, {change.author}: {change.why}{back}"


def _row_cells(each: RowVersion, destination: str) -> tuple[object, ...]:
    row, resolved = each
    if resolved is None:
        return row.routing_name, "disabled", destination, "", "", "", "", _span(each)
    complete = (
        row.complete_count and f"count({row.complete_count})",
        row.complete_bytes and f"bytes({row.complete_bytes})",
    )
    give_up = (row.age_ms and f"age({row.age_ms})", row.idle_ms and f"idle({row.idle_ms})")
    return (
        row.routing_name,
        resolved.name,
        destination,
        row.target_topic or f"{destination}.units",
        _joined([*complete, row.complete_when]),
        _joined([*give_up, row.give_up_when]),
        row.on_give_up.value,
        _span(each),
    )


def _groups(rules: RuleSet, rule: Rule) -> str:
    """Which records meet in the groups of row `*`, and what becomes of those without a name."""
    return f"{rule.default_group}, no key: {on_no_key(rule, rules.sources_of(rule))}"


def _joined(texts: Iterable[object]) -> str:
    return ", ".join(str(text) for text in texts if text)


def _span(each: RowVersion) -> str:
    start, end = each.row.valid_from_ms, each.row.valid_to_ms
    texts = [start is not None and f"from {moment_text(start)}", end is not None and f"until {moment_text(end)}"]
    return " ".join(str(text) for text in texts if text)


@command.command()
@click.argument("file", type=_FILE, required=False)
@config_option
@json_option
@click.pass_context
def check(ctx: click.Context, file: Path | None, settings: Settings, as_json: bool) -> None:
    """Report every mistake in the rules of FILE, or in those of the source, at once; exit 2 when there is one.

    Where there is none, the last records of the routers' inputs are tried, if brokers answer: those in which the rules find no key are told.
    """
    desk = RuleDesk(settings)
    complaints: Sequence[Complaint] = ()
    keyless: Counter[tuple[str, str]] = Counter()
    try:
        rules = desk.read() if file is None else desk.file(file, wall_clock_ms())
        complaints = [*desk.complaints(rules), *desk.never_closing(rules), *desk.never_reached(rules)]
        keyless = Counter() if complaints else desk.keyless(rules)
    except ConfigError as error:
        complaints = error.complaints
    if as_json:
        print_json(
            {"complaints": [_complaint_json(each) for each in complaints], "without_key": _keyless_json(keyless)}
        )
    else:
        for each in complaints:
            click.echo(printable(str(each)))
        if not complaints:
            click.echo("the rules are good")
        _print_keyless(keyless, "of the last records of the inputs: ")
    ctx.exit(WRONG_USAGE if complaints else 0)


def _complaint_json(each: Complaint) -> dict[str, object]:
    return {"setting": each.setting, "value": each.value, "rule": each.rule}


@command.command()
@click.argument("file", type=_FILE)
@config_option
@json_option
@_author_options
@click.option("--why", default="", metavar="TEXT", help="The reason. [default: the file's]")
def put(file: Path, settings: Settings, as_json: bool, author: str, dry_run: bool, why: str) -> None:
    """Make FILE, a whole set of rules, the next version.

    It must be valid, and one version above the present one, so that nobody overwrites a change that he has not seen. What it lacks is disabled.
    """
    desk = RuleDesk(settings)
    current = desk.read()
    _put(desk, current, desk.proposed(file, current, author, why, wall_clock_ms()), dry_run, as_json)


def _put(desk: RuleDesk, current: RuleSet, made: RuleTables, dry_run: bool, as_json: bool) -> None:
    changed = list(differences(current, RuleSet(current.tables.with_rows_of(made))))
    if not dry_run:
        desk.put(made, current)
    if as_json:
        print_json(
            {"version": made.version, "written": not dry_run, "differences": [each._asdict() for each in changed]}
        )
        return
    _print_differences(changed)
    click.echo(f"version {made.version} {'would be written' if dry_run else 'is written'}")


def _print_differences(several: Iterable[Difference]) -> None:
    print_table(("what", "column", "old", "new"), [(each.name, each.column, each.old, each.new) for each in several])


@command.command()
@click.argument("version", type=click.IntRange(1))
@config_option
@json_option
@_author_options
@click.option("--why", required=True, metavar="TEXT", help="The reason.")
def revert(version: int, settings: Settings, as_json: bool, author: str, dry_run: bool, why: str) -> None:
    """Make the rules as they were at VERSION, in a new version."""
    desk = RuleDesk(settings)
    current = desk.read()
    made = desk.reverted(version, current, author or getpass.getuser(), why, wall_clock_ms())
    _put(desk, current, made, dry_run, as_json)


@command.command()
@config_option
@json_option
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, help="How many versions.")
def history(settings: Settings, as_json: bool, last: int) -> None:
    """List the versions, the latest first: author, time, reason, old and new values, and why one took no effect."""
    desk = RuleDesk(settings)
    versions = [each for each, _ in zip(desk.history(desk.read()), range(last), strict=False)]
    if as_json:
        print_json(
            [
                told(each.change, ())
                | {
                    "complaints": [_complaint_json(complaint) for complaint in each.complaints],
                    "differences": [difference._asdict() for difference in each.differences],
                }
                for each in versions
            ]
        )
        return
    for each in versions:
        click.echo(printable(_headline(each.change)))
        for complaint in each.complaints:
            click.echo(printable(f"  took no effect: {complaint}"))
        _print_differences(each.differences)
        click.echo()


@command.command()
@config_option
def refresh(settings: Settings) -> None:
    """Make every router look at the rules now, and not only after `refresh_ms`."""
    RuleDesk(settings).refresh()
    click.echo("the routers are asked to look")


@command.command()
@click.argument("file", type=_FILE)
@config_option
@json_option
@click.option(
    "--from", "from_ms", type=TimeType(), default=0, metavar="MOMENT", help="Records appended at this moment or later."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Most records, which are kept in memory.",
)
def rehearse(file: Path, settings: Settings, as_json: bool, from_ms: int, limit: int) -> None:
    """Play the recorded inputs of the routers under the rules in force and under those of FILE, and compare. Nothing is written.

    Of each row: units, files (one for each unit), how many are partial or closed by time, components per unit, waits, groups not delivered, components still open.
    """
    before, after = RuleDesk(settings).rehearsal(file, from_ms, limit, _PATIENCE_S, wall_clock_ms())
    rows = {
        name: (before.rows.get(name, RowFigures()).row(), after.rows.get(name, RowFigures()).row())
        for name in sorted({*before.rows, *after.rows})
    }
    if as_json:
        compared = {name: {"in_force": old, "rehearsed": new} for name, (old, new) in rows.items()}
        print_json(
            {
                "records": before.records,
                "rejected": [before.rejected, after.rejected],
                "passed": [before.passed, after.passed],
                "without_key": [_keyless_json(before.keyless), _keyless_json(after.keyless)],
                "rows": compared,
            }
        )
        return
    columns = [*RowFigures().row()]
    print_table(
        ("row", "rules", *columns),
        [
            (name, rules, *(figures[column] for column in columns))
            for name, both in rows.items()
            for rules, figures in zip(("in force", "rehearsed"), both, strict=True)
        ],
    )
    click.echo(
        f"{before.records} records; rejected {before.rejected} and {after.rejected}; passed {before.passed} and {after.passed}"
    )
    for rules, figures in (("in force", before), ("rehearsed", after)):
        _print_keyless(figures.keyless, f"{rules}: ")


def _keyless_json(keyless: Counter[tuple[str, str]]) -> list[dict[str, object]]:
    return [{"rule": rule, "why": why, "records": count} for (rule, why), count in sorted(keyless.items())]


def _print_keyless(keyless: Counter[tuple[str, str]], before: str = "") -> None:
    for (rule, why), count in sorted(keyless.items()):
        click.echo(printable(f"{before}rule {rule}: {count} records without a key: {why}"))
