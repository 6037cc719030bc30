"""`uow rules show|check|put|history|revert`, and rules in `uow config check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.rules.low_stock import FIXTURE
from uow.cli.main import main
from uow.config.loading import load
from uow.ops.rules import RuleDesk
from uow.ops.target_topics import targets_by_destination
from uow.processor.rules.in_force import RulesInForce
from uow.processor.rules.rule_file import read_rules
from uow.processor.rules.rule_set import RuleTables
from uow.processor.rules.store import RuleDatabase, rule_source
from uow.topics.rules import Change, Rule

TOML = """
[rules]
source = "sqlite:///rules.db"
[destinations.supply]
handling_policy = "single_message_delivery"
incomplete_expiration_ms = 60000
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("uow.toml").write_text(TOML)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def rules_file(version: int = 1, old: str = "", new: str = "") -> str:
    """A file with the fixture, a version, and one text replaced."""
    text = FIXTURE.read_text()
    assert old in text
    Path("new.toml").write_text(text.replace("version = 1", f"version = {version}").replace(old, new))
    return "new.toml"


def put(*arguments: object) -> None:
    result = run("rules", "put", rules_file(*arguments))  # type: ignore[arg-type]
    assert result.exit_code == 0, result.stderr


def shown(*arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run("rules", "show", "--json", *arguments).stdout)
    return found


def test_a_file_becomes_a_version_which_is_shown_and_written_as_a_file_again() -> None:
    assert run("rules", "put", rules_file(), "--dry-run").exit_code == 0
    assert not Path("rules.db").exists()
    put()
    lines = run("rules", "show").stdout.splitlines()
    assert lines[0].startswith("version 1, ")
    assert "supply team: first rules" in lines[0]
    row = "low-stock\tFrance\tlow-stock/France@1\tsupply\torders.france\tcount(10)\tage(30000)\tdeliver_partial\t\t"
    assert row in lines
    others = [line for line in lines if "\t*\t" in line]
    assert [line.rpartition("\t")[2] for line in others] == ["shared, no key: default"]
    Path("again.toml").write_text(run("rules", "show", "--toml").stdout.replace("version = 1", "version = 2"))
    result = run("rules", "put", "again.toml")
    assert (result.exit_code, "nothing differs" in result.stderr) == (1, True)


def test_a_file_that_is_not_made_of_the_present_version_is_refused() -> None:
    put()
    result = run("rules", "put", rules_file(3))
    assert (result.exit_code, "then say version = 2" in result.stderr) == (1, True)


def test_check_reports_every_mistake_of_a_file_and_exits_2_b15() -> None:
    wrong = rules_file(1, "complete_count = 5, age_ms = 15000, ", "")
    Path(wrong).write_text(Path(wrong).read_text().replace('"supply"', '"nowhere"'))
    result = run("rules", "check", wrong)
    assert result.exit_code == 2
    assert [line.partition(" ")[0] for line in result.stdout.splitlines()] == [
        "rule/low-stock.destination",
        "rule_row/low-stock/UK.complete_count",
    ]
    assert len(json.loads(run("rules", "check", wrong, "--json").stdout)["complaints"]) == 2
    assert run("rules", "put", wrong).exit_code == 2
    assert not Path("rules.db").exists()
    assert run("rules", "check", rules_file()).exit_code == 0


def test_a_new_row_that_closes_no_group_by_its_condition_is_refused_and_one_in_force_is_in_nobodys_way_b15() -> None:
    change = "complete_count = 5", 'complete_count = 5, complete_when = "per_source"'
    assert run("rules", "check", rules_file(1, *change)).stdout == (
        "rule_row/low-stock/UK.complete_when = 'per_source': holds for no group, so none would close by it\n"
    )
    assert run("rules", "put", rules_file(1, *change)).exit_code == 2
    source = rule_source("sqlite:///rules.db")
    assert isinstance(source, RuleDatabase)
    source.create()
    source.put(read_rules(Path(rules_file(1, *change)).read_text(), 0), after=0)  # as an earlier release took it
    assert run("config", "check").exit_code == 0
    assert shown()["version"] == 1
    Path("new.toml").write_text(
        Path(rules_file(2, *change)).read_text().replace("complete_count = 20", "complete_count = 21")
    )
    assert run("rules", "put", "new.toml").exit_code == 0
    assert run("rules", "revert", "1", "--why", "as it was").exit_code == 0


def test_a_rule_to_which_no_record_comes_is_named_b111() -> None:
    """With brokers away nothing else is known of the router's inputs."""
    second = """
[[rule]]
rule_id = "second"
destination = "supply"
priority = 200
row = [{ routing_name = "*", complete_count = 1 }]
"""
    Path("uow.toml").write_text(
        f'{TOML}[application]\nbootstrap_servers = "127.0.0.1:1"\n[routers.r]\ninputs = ["events"]\n'
    )
    path = rules_file()
    Path(path).write_text(Path(path).read_text() + second)
    refused = run("rules", "check", path)
    assert refused.exit_code == 2
    assert refused.stdout.startswith(
        "rule/second.priority = 200: no record comes to it: low-stock is asked before it, and takes every record."
    )
    assert run("rules", "put", path).exit_code == 0, "another process may have other routers"


def test_history_shows_old_and_new_values_and_revert_takes_a_version_back_b19_b214() -> None:
    put()
    assert (
        run("rules", "put", rules_file(2, "complete_count = 5", "complete_count = 6"), "--why", "more").exit_code == 0
    )
    assert run("rules", "revert", "1", "--why", "too many", "--author", "anna").exit_code == 0
    text = run("rules", "history").stdout
    assert "row low-stock/UK\tcomplete_count\t5\t6" in text
    assert "anna: too many, as version 1 was" in text
    told = json.loads(run("rules", "history", "--json").stdout)
    assert [(each["version"], each["author"], each.get("reverts_to")) for each in told] == [
        (3, "anna", 1),
        (2, "supply team", None),
        (1, "supply team", None),
    ]
    assert shown()["row"] == shown("--version", "1")["row"] != shown("--version", "2")["row"]
    assert run("rules", "revert", "9", "--why", "x").exit_code == 1
    assert run("rules", "revert", "1").exit_code == 2


def test_a_version_that_took_no_effect_is_told_and_the_one_before_it_is_shown_b15() -> None:
    put()
    put(2, "complete_count = 5", "complete_count = 6")
    Path("uow.toml").write_text(TOML.replace("destinations.supply", "destinations.other"))
    assert "took no effect: rule/low-stock.destination" in run("rules", "history").stdout
    assert "version 2 has faults, and none is without" in run("rules", "show").stderr
    assert run("rules", "check").exit_code == 2
    with Path("uow.toml").open("a") as config:
        config.write('[routers.r]\ninputs = ["stock.events"]\n')
    assert "router r holds its inputs: rule low-stock: rule/low-stock.destination" in run("rules", "show").stderr
    Path("uow.toml").write_text(TOML)
    RuleDesk(load(Path("uow.toml"), {})).source().put(  # type: ignore[union-attr]
        RuleTables((Change(3, "a test", "an error", 0),), (Rule("low-stock", 3, "nowhere"),)), after=2
    )
    result = run("rules", "show")
    assert "version 3 took no effect" in result.stderr
    assert "version 2," in result.stdout


def test_router_commands_and_topics_see_one_version_of_one_store_b11() -> None:
    """Each by its own way; and no other module asks a database."""
    put()
    put(2, "orders.uk", "orders.gb")
    with Path("uow.toml").open("a") as config:
        config.write('[routers.r]\ninputs = ["stock.events"]\n')
    settings = load(Path("uow.toml"), {})
    desk = RuleDesk(settings)
    routers = RulesInForce(rule_source(settings.rules.source), desk.complaints).start()
    assert (routers.version, desk.in_force(desk.read()).version, shown()["version"]) == (2, 2, 2)
    assert routers.content() == desk.read().content()
    assert "orders.gb" in targets_by_destination(settings)["supply"]
    root = Path(__file__).parents[2]
    asking = [
        path for room in ("processor", "spark_sink", "uow/ops", "uow/cli") for path in (root / room).rglob("*.py")
    ]
    assert [path.name for path in asking if "import sqlalchemy" in path.read_text("utf-8")] == ["store.py"]


def test_rules_in_a_file_are_read_and_not_written() -> None:
    Path("uow.toml").write_text(TOML.replace("sqlite:///rules.db", str(FIXTURE)))
    assert shown()["version"] == 1
    result = run("rules", "put", rules_file(2, "complete_count = 5", "complete_count = 6"))
    assert (result.exit_code, "change the file, and raise its version" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("source", "status", "text"),
    [
        ("", 2, "rules.source = ''"),
        ("mysql://a:hush@b/c", 2, "must be sqlite or postgresql"),
        ("none.toml", 1, "No such file"),
        ("postgresql://a:hush@127.0.0.1:1/c", 1, "127.0.0.1"),
    ],
)
def test_a_source_that_cannot_be_read_says_why_and_shows_no_password(source: str, status: int, text: str) -> None:
    Path("uow.toml").write_text(TOML.replace("sqlite:///rules.db", source))
    result = run("rules", "show")
    assert (result.exit_code, text in result.stderr, "hush" in result.stderr) == (status, True, False)


def test_config_check_refuses_a_rule_whose_destination_forms_no_units() -> None:
    put()
    assert run("config", "check").exit_code == 0
    Path("uow.toml").write_text(TOML.replace("single_message_delivery", "pass_through"))
    result = run("config", "check")
    assert result.exit_code == 2
    assert "rule/low-stock.destination = 'supply': its handling_policy must be single_message_delivery" in result.stdout
    Path("uow.toml").write_text(
        TOML.replace("rules.db", "away/rules.db") + "[routers.r]\ninputs = ['stock.events']\nrules = ['low-stock']"
    )
    result = run("config", "check")
    assert result.exit_code == 2, "a router without any of its rules"
    Path("uow.toml").write_text(TOML.replace("rules.db", "away/rules.db"))
    result = run("config", "check")
    assert (result.exit_code, "away/rules.db has no rules yet" in result.stdout) == (0, True)


def test_config_check_names_a_rule_that_a_router_asks_for_and_that_is_not_there() -> None:
    put()
    Path("uow.toml").write_text(TOML + "[routers.r]\ninputs = ['stock.events']\nrules = ['low-stock', 'lost']")
    assert "routers.r.rules = 'lost': is no enabled rule" in run("config", "check").stdout
