"""Keys of commands in the configuration, and files of private ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fake_record import FakeRecord
from uow.cli.main import main
from uow.config.command_key_files import make_key, read_signer
from uow.config.loading import load
from uow.processor.engine.settings_record import differences, row_of
from uow.schemas.error_classes import ConfigError
from uow.topics.command_keys import NEVER_ENDS, CommandKey
from uow.topics.commands import Command, CommandReader
from uow.topics.policies import DestinationPolicy

PUBLIC = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
KEY = {"name": '"ops"', "public": f'"{PUBLIC}"', "verbs": '["cancel", "release"]', "from": "1970-01-01T00:00:05Z"}


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield
    os.umask(before)


def policy(*tables: dict[str, str], settings: str = "") -> DestinationPolicy:
    lines = ["[destinations.d]", settings]
    for table in tables:
        lines += ["[[destinations.d.command_keys]]", *(f"{name} = {value}" for name, value in table.items())]
    Path("uow.toml").write_text("\n".join(lines))
    return load(None, {}).policy("d")


def test_keys_are_read_with_their_verbs_and_their_time() -> None:
    old = {"from": "1970-01-01T00:00:10Z", "until": "1970-01-01T01:00:20.5+01:00"}
    assert policy(KEY, KEY | old).command_keys == (
        CommandKey("ops", PUBLIC, frozenset({"cancel", "release"}), 5_000),
        CommandKey("ops", PUBLIC, frozenset({"cancel", "release"}), 10_000, 20_500),
    )
    assert policy(KEY).command_keys[0].until_ms == NEVER_ENDS
    assert policy().unsigned_commands == {"manifest"}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"name": '""'}, "name must be"),
        ({"name": r'"a\u001b"'}, "name must be"),
        ({"name": "1"}, "name must be"),
        ({"name": f'"{"x" * 101}"'}, "name must be"),
        ({"public": '"short"'}, "public must be"),
        ({"public": f'"{PUBLIC[:-4]}"'}, "public must be"),
        ({"public": f'"{PUBLIC}="'}, "public must be"),
        ({"verbs": "[]"}, "verbs must be a list of release"),
        ({"verbs": '["relase"]'}, "verbs must be a list of release"),
        ({"verbs": '"all"'}, "verbs must be a list of release"),
        ({"verbs": "[1]"}, "verbs must be a list of release"),
        ({"from": '"2026-01-01"'}, "from must be a moment with its zone"),
        ({"until": "2026-01-01T00:00:00"}, "until must be a moment with its zone"),
        ({"from": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "until must be later than from"),
        ({"whose": '"mine"'}, "and nothing else"),
    ],
)
def test_a_key_that_is_none_is_refused_with_its_rule(change: dict[str, str], rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(KEY, KEY | change)
    (complaint,) = caught.value.complaints
    assert complaint.setting == "destinations.d.command_keys"
    assert complaint.rule.startswith("key 2: ")
    assert rule in complaint.rule


def test_a_window_fits_twice_into_the_time_for_which_ids_are_remembered() -> None:
    assert policy(KEY, settings="closed_retention_ms = 600_000").command_keys
    with pytest.raises(ConfigError, match="must be at most half of closed_retention_ms, 299999"):
        policy(KEY, settings="closed_retention_ms = 599_999")
    assert not policy(settings="closed_retention_ms = 599_999").command_keys


def test_keys_are_settings_that_all_workers_share_and_none_leave_the_record_as_it_was() -> None:
    assert row_of(DestinationPolicy()).settings == ()
    (found,) = differences(row_of(policy(KEY)), row_of(policy(KEY | {"verbs": '["cancel"]'})))
    assert found.name == "command_keys"


def test_a_key_that_is_added_as_the_command_prints_it_judges_no_command_that_came_before_it() -> None:
    """Else an audit refuses what the workers obeyed before there were keys, and before there was this one."""
    status, printed, _ = create("ops", "--out", "next.key")
    printed = printed.replace("NAME", "d")
    assert status == 0
    headers: list[tuple[str, bytes | None]] = [("uow-command", b"release"), ("uow-command-id", b"c"), ("uow-id", b"a")]
    headers.append(("uow-why", b"why"))
    Path("uow.toml").write_text(f"[destinations.d]\n{printed}")
    began = load(None, {}).policy("d")
    Path("uow.toml").write_text(f"[destinations.d]\n{printed}{printed.replace('ops', 'more')}")
    for keys in (began, load(None, {}).policy("d")):
        since = began.command_keys[0].since_ms
        for at, is_obeyed in ((10**12, True), (since - 1, True), (since, False)):
            read = CommandReader("d", keys).read(headers, FakeRecord(0, headers, None, b"a", at))
            assert isinstance(read, Command) is is_obeyed
    with pytest.raises(ConfigError, match="must have name, public, verbs and from"):
        policy(KEY, {name: text for name, text in KEY.items() if name != "from"})


def create(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["command-key", "create", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_a_key_is_made_for_its_user_alone_and_its_lines_are_those_of_the_configuration() -> None:
    status, lines, _ = create("the operators", "--out", "mine.key", "--verb", "release")
    assert status == 0
    assert Path("mine.key").stat().st_mode & 0o777 == 0o600
    Path("uow.toml").write_text(f"[destinations.NAME]\n{lines}")
    signer = read_signer(Path("mine.key"))
    (key,) = load(None, {}).policy("NAME").command_keys
    assert key == CommandKey("the operators", signer.public, frozenset({"release"}), key.since_ms)
    before = Path("mine.key").read_bytes()
    status, _, told = create("another", "--out", "mine.key")
    assert (status, "File exists" in told, Path("mine.key").read_bytes()) == (2, True, before)
    assert create('a"b', "--out", "new.key")[0] == 2
    assert not Path("new.key").exists()


def test_a_file_that_others_may_read_or_that_is_no_key_is_refused() -> None:
    path = Path("mine.key")
    signer = make_key(path, "ops")
    path.chmod(0o640)
    assert read_signer(path).public == signer.public
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="other users may use the file, whose mode is 604"):
        read_signer(path)
    path.chmod(0o600)
    good = path.read_text()
    for text in (
        "no toml at all",
        good.replace("private", "secret"),
        good.replace('name = "ops"', "name = 1"),
        'name = "a"\nprivate = "?"',
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match="is no file of a private key") as caught:
            read_signer(path)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_signer(Path("nowhere.key"))
