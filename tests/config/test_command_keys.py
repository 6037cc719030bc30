"""Keys of commands in the configuration, and files of private ones."""

from __future__ import annotations

import os
import re
import tomllib
import traceback
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from tests.fake_record import FakeRecord
from uow.cli.main import main
from uow.config.command_key_files import make_key, read_signer
from uow.config.command_key_settings import read_command_keys
from uow.config.loading import load
from uow.config.settings_page import COMMAND_KEYS
from uow.processor.engine.settings_record import differences, row_of
from uow.schemas.error_classes import ConfigError
from uow.schemas.masking import MASK, masked_path
from uow.topics.command_keys import NEVER_ENDS, CommandKey, CommandSigner, is_public_key
from uow.topics.commands import Command, CommandReader
from uow.topics.policies import DestinationPolicy

PUBLIC = CommandSigner("ops", b"\1" * 32).public
KEY = {"name": '"ops"', "public": f'"{PUBLIC}"', "verbs": '["cancel", "release"]', "from": "1970-01-01T00:00:05Z"}


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield
    os.umask(before)


def policy(*tables: dict[str, str], settings: str = "") -> DestinationPolicy:
    lines = ["[destinations.d]", "handling_policy = 'pass_through'", settings]
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


def test_with_keys_enough_ids_are_remembered_of_each() -> None:
    assert policy(KEY, settings="closed_max_groups = 1000").command_keys
    with pytest.raises(ConfigError, match="must be at least 1000: so many ids are remembered of each key"):
        policy(KEY, settings="closed_max_groups = 999")
    assert policy(settings="closed_max_groups = 1").closed_max_groups == 1


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
    Path("uow.toml").write_text(f"[destinations.d]\nhandling_policy = 'pass_through'\n{printed}")
    began = load(None, {}).policy("d")
    Path("uow.toml").write_text(
        f"[destinations.d]\nhandling_policy = 'pass_through'\n{printed}{printed.replace('ops', 'more')}"
    )
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
    Path("uow.toml").write_text(f"[destinations.NAME]\nhandling_policy = 'pass_through'\n{lines}")
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


P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The sum of two points of the curve (RFC 8032, 5.1.4)."""
    (x, y), (u, v) = one, other
    k = D * x * y * u * v % P
    return (x * v + y * u) * pow(1 + k, -1, P) % P, (y * v + x * u) * pow(1 - k, -1, P) % P


def times(count: int, point: tuple[int, int]) -> tuple[int, int]:
    found = (0, 1)
    for bit in f"{count:b}":
        found = added(found, found)
        found = added(found, point) if bit == "1" else found
    return found


def point_of(y: int) -> tuple[int, int] | None:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    return (x, y) if (x * x - square) % P == 0 else None


def encoded(x: int, y: int) -> str:
    return b64encode((y | (x & 1) << 255).to_bytes(32, "little")).decode()


def test_a_key_under_which_anybody_can_sign_is_none() -> None:
    """All points of small order, which are what is left of any point times the order of the others; and their second encodings."""
    points = [found for y in range(2, 60) if (found := point_of(y)) is not None]
    weak = {times(ORDER, point) for point in points}
    assert len(weak) == 8
    everywhere = {encoded(sign, y) for _, y in weak for sign in (0, 1)}
    everywhere |= {encoded(sign, y + P) for _, y in weak if y < 19 for sign in (0, 1)}
    assert len(everywhere) == 14
    assert not [each for each in everywhere if is_public_key(each)]
    assert all(is_public_key(encoded(*point)) for point in points)
    with pytest.raises(ConfigError, match="public must be a raw Ed25519 key"):
        policy(KEY | {"public": f'"{encoded(0, 1)}"'})


PUBLISHED = """
9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60
4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb
c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7
f5e5767cf153319517630f226876b86c8160cc583bc013744c6bf255f5cc0ee5
0305334e381af78f141cb666f6199f57bc3495335a256a95bd2a55bf546663f6
ab9c2853ce297ddab85c993b3ae14bcad39b2c682beabc27d6d4eb20711d6560
833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42
000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
"""
"""The private keys of RFC 8032, and that of the wire format."""


@pytest.mark.parametrize("private", PUBLISHED.split())
def test_a_key_whose_private_one_everybody_can_read_is_none(private: str) -> None:
    public = CommandSigner("ops", bytes.fromhex(private)).public
    last = chr(ord(public[-2]) + 1)
    same = f"{public[:-2]}{last}="  # bits behind the last byte say nothing
    assert b64decode(same) == b64decode(public)
    for text in (public, same):
        with pytest.raises(ConfigError, match="public must be a raw Ed25519 key"):
            policy(KEY | {"public": f'"{text}"'})


def test_the_example_of_the_reference_gives_nobody_a_right() -> None:
    (block,) = re.findall(r"```toml\n(\[\[destinations.megazon.command_keys.*?)```", COMMAND_KEYS, re.DOTALL)
    for table in tomllib.loads(block)["destinations"]["megazon"]["command_keys"]:
        keys, wrong = read_command_keys([table])
        assert not keys
        assert "public must be" in wrong[0]
        _, wrong = read_command_keys([table | {"public": PUBLIC}])
        assert not wrong, "it is right but for the key"


@pytest.mark.parametrize(
    "value",
    [
        b64encode(bytes(range(32))).decode(),
        b64encode(bytes(range(15)) + b"\xff" * 6 + bytes(11)).decode(),  # slashes, of which a path keeps one
        b64encode(bytes(range(32))).decode().rstrip("="),
        bytes(range(32)).hex(),
        f'name = "ops"\nprivate = "{b64encode(bytes(range(32))).decode()}"\n',
        f'private = "{b64encode(bytes(range(32))).decode()}"',
        b64encode(bytes.fromhex("302e020100300506032b657004220420") + bytes(range(32))).decode(),  # PKCS8
        "-----BEGIN PRIVATE KEY-----MC4CAQAwBQYDK2Vw.BCIEI" + b64encode(bytes(range(32))).decode()[:20],
        f"base64:{b64encode(bytes(range(32))).decode().rstrip('=')}",
        bytes(range(32)).hex(":"),
        bytes(range(32)).hex(" "),
    ],
)
def test_a_key_in_place_of_its_file_is_not_printed(value: str) -> None:
    settings = load(None, {"UOW_APPLICATION__COMMAND_KEY": value})
    with pytest.raises(ConfigError) as caught:
        settings.command_signer()
    shown = str(settings.effective["application.command_key"].shown)
    printed = "".join(traceback.format_exception(caught.value)) + shown + str(caught.value)
    for secret in (
        value,
        str(Path(value)),
        b64encode(bytes(range(32))).decode()[:20],
        bytes(range(9)).hex(),
        bytes(range(9)).hex(":"),
    ):
        assert secret not in printed
    for path in (
        "keys/ops.key",
        "/var/run/secrets/uow/command-key",
        "/var/run/secrets/uow/command-signing-key/private_key",
        "/Users/jill/secrets/uow/signing-key/the_key",  # as long as a key
        f"/{'long/' * 20}operators.key",
    ):
        settings = load(None, {"UOW_APPLICATION__COMMAND_KEY": path})
        assert settings.effective["application.command_key"].shown == path


def test_a_key_that_begins_and_goes_on_with_slashes_as_a_path_does_is_not_shown() -> None:
    rnd = Random(1)
    for size in (32, 64) * 5_000:
        raw = bytes([rnd.randrange(0xFC, 0x100), *rnd.randbytes(size - 1)])
        text = b64encode(raw).decode()
        assert text.startswith("/")
        assert {masked_path(text), masked_path(text.rstrip("="))} == {MASK}
    for key in (f"/keys/{'ab12' * 16}", f"/{'ab12' * 16}"):
        assert masked_path(key) == MASK


def test_a_file_that_another_user_may_change_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("mine.key")
    signer = make_key(path, "ops")
    for mode in (0o620, 0o660, 0o606):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"whose mode is {mode:o}"):
            read_signer(path)
    path.chmod(0o440)
    assert read_signer(path).public == signer.public
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    for owner, mode, is_refused in (
        (4712, 0o600, True),
        (4711, 0o600, False),
        (0, 0o640, False),
    ):  # the last as secrets are mounted
        status = os.stat_result((0o100000 | mode, 0, 0, 1, owner, *path.stat()[5:]))
        monkeypatch.setattr(os, "fstat", lambda _, status=status: status)
        with pytest.raises(ConfigError, match="that of another user, 4712") if is_refused else nullcontext():
            assert read_signer(path).public == signer.public
