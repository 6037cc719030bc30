"""`uow config show|check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from uow.cli.main import main
from uow.topics.strict_order import HAZARDS, ROWS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, toml: str = "") -> Result:
    Path("uow.toml").write_text(toml, encoding="utf-8")
    return CliRunner().invoke(main, ["config", *arguments])


def test_show_prints_value_and_origin_of_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UOW_WORKER__POLL_RECORDS", "9")
    result = run(
        "show",
        "--json",
        toml="[destinations.d]\nhandling_policy = 'pass_through'\nmax_bytes = 5\n[kafka]\nsasl.password = 'hush'",
    )
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert shown["worker.poll_records"] == {"value": 9, "origin": "UOW_WORKER__POLL_RECORDS"}
    assert shown["destinations.d.max_bytes"] == {"value": 5, "origin": "uow.toml"}
    assert shown["destinations.d.accept_aliases"] == {"value": [], "origin": "default"}
    assert "hush" not in result.stdout


def test_show_in_a_pipe_prints_one_setting_a_line() -> None:
    lines = run("show", toml="[worker]\nweb = 'off'").stdout.splitlines()
    assert "worker.web\toff\tuow.toml" in lines
    assert 'schemas.registry_url\t""\tdefault' in lines


def test_show_of_a_wrong_configuration_exits_2() -> None:
    result = run("show", toml="[worker]\nweb = 3")
    assert (result.exit_code, result.stderr) == (2, "uow: worker.web = 3: must be a text\n")


def test_check_lists_every_complaint_and_exits_2() -> None:
    toml = "[worker]\nweb = 3\npoll_records = 0"
    result = run("check", toml=toml)
    assert result.exit_code == 2
    assert [line.partition(" ")[0] for line in result.stdout.splitlines()] == ["worker.poll_records", "worker.web"]
    rows = json.loads(run("check", "--json", toml=toml).stdout)["complaints"]
    assert [row["setting"] for row in rows] == ["worker.poll_records", "worker.web"]


def test_check_of_a_good_configuration_exits_0_and_passes_warnings_on() -> None:
    """W-72."""
    result = run("check", toml="[destinations.d]\nhandling_policy = 'single_message_delivery'")
    assert result.exit_code == 0
    assert "warning: destinations.d: incomplete_expiration_ms = -1" in result.stdout


def test_check_reads_the_file_that_is_named() -> None:
    Path("other.toml").write_text("[worker]\nweb = 3")
    assert run("check", "-c", "other.toml").exit_code == 2


def test_show_lists_what_strict_order_forces_and_refuses_and_the_hazards_s02() -> None:
    toml = "[destinations.d]\nhandling_policy = 'pass_through'\nstrict_order = true\nconcurrency = 8"
    lines = run("show", toml=toml).stdout.splitlines()
    assert "destinations.d.concurrency\t1\tstrict_order, in place of 8 from uow.toml" in lines
    assert "readers without a group, share groups\trefuse\t" in lines
    assert any(line.startswith("- plain producers: order holds within one run") for line in lines)
    shown = json.loads(run("show", "--json", toml=toml).stdout)["strict_order"]
    assert shown["overridden"] == [{"destination": "d", "setting": "concurrency", "requested": 8, "effective": 1}]
    assert len(shown["rows"]) == len(ROWS)
    assert len(shown["hazards"]) == len(HAZARDS)
    assert "strict order" not in run("show", toml="[destinations.d]\nhandling_policy = 'pass_through'").stdout
