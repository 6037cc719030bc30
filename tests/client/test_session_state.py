"""When a connection is lost, refreshed, given up, and what calls on it then say: decisions without threads and without Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import uow
from uow import errors
from uow.cli.main import main
from uow.client.session_state import (
    ConnectionLost,
    ConnectionRefreshed,
    ConnectionState,
    Ended,
    Life,
    Patience,
    ReconnectPolicy,
    Scope,
    Waits,
    policy_of,
)
from uow.config.loading import load


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Thing:
    """Something that a loss event may end."""

    def __init__(self) -> None:
        self.ended: Ended | None = None

    def end(self, ended: Ended, timeout: float) -> None:
        self.ended = ended


def a_life(clock: Clock, policy: str = "producer", blocking_ms: int = 6000, total_ms: int = -1) -> Life:
    life = Life("a:1,b:2", ReconnectPolicy(policy), Waits(blocking_ms, total_ms), clock, lambda: 1_700_000_000.5)
    life.answered()
    return life


def told(life: Life) -> list[Any]:
    return [life.events.get_nowait().event for _ in range(life.events.qsize())]


def test_two_outages_are_two_pairs_and_two_epochs_of_one_connection_r17_r27() -> None:
    life = a_life(Clock())
    assert (life.state, life.epoch) == (ConnectionState.CONNECTED, 1)
    for _ in range(2):
        life.lost("refused")
        life.lost("refused again")
        assert life.state is ConnectionState.RECONNECTING
        life.answered()
        life.answered()
    assert told(life) == [
        ConnectionLost(1, "refused"),
        ConnectionRefreshed(2),
        ConnectionLost(2, "refused"),
        ConnectionRefreshed(3),
    ]
    assert (life.epoch, life.reconnects) == (3, 2)


@pytest.mark.parametrize(
    ("policy", "survivors"),
    [("none", set()), ("producer", {Scope.PRODUCER}), ("all", {Scope.PRODUCER, Scope.READER})],
)
def test_policy_says_what_a_loss_event_ends_r03_r06_r41_r61(policy: str, survivors: set[Scope]) -> None:
    life = a_life(Clock(), policy)
    things = {scope: Thing() for scope in Scope}
    for scope, thing in things.items():
        life.watch_over(thing, scope)
    life.lost("refused")
    assert {scope for scope, thing in things.items() if thing.ended is None} == survivors
    assert (life.state is ConnectionState.STALE) == (policy == "none")


@pytest.mark.parametrize(("policy", "is_over"), [("none", True), ("producer", True), ("all", False)])
@pytest.mark.parametrize("how", ["brokers", "reader"])
def test_a_loss_ends_all_of_a_connection_with_a_client_id_unless_all_is_refreshed_r23_r41(
    policy: str, is_over: bool, how: str
) -> None:
    life = Life("a:1", ReconnectPolicy(policy), is_named=True)
    life.answered()
    if how == "brokers":
        life.lost("refused")
    else:
        life.lost_reader("the group gave t/0 away")
    assert (life.state is ConnectionState.STALE) == is_over
    if is_over:
        with pytest.raises(errors.StaleConnectionError, match="is stale since"):
            life.require_open()


def test_policy_set_on_the_connection_counts_from_the_next_loss_on_r40() -> None:
    life, thing = a_life(Clock()), Thing()
    life.watch_over(thing, Scope.READER)
    life.policy = ReconnectPolicy.ALL
    life.lost("refused")
    life.answered()
    assert thing.ended is None
    life.policy = ReconnectPolicy.PRODUCER
    life.lost("refused")
    assert thing.ended is not None


def test_unknown_policy_and_impossible_waits_are_refused_by_name_r41() -> None:
    with pytest.raises(errors.ConfigError, match="reconnect_policy"):
        policy_of("some")
    with pytest.raises(errors.ConfigError, match="reconnect_total_ms"):
        Waits.checked(0, -2)


def test_call_on_a_stale_connection_names_the_event_and_the_moment() -> None:
    life = a_life(Clock(), "none")
    life.lost("b:2: Connection refused")
    with pytest.raises(errors.StaleConnectionError, match=r"2023-11-14T22:13:20.500.*a:1,b:2.*Connection refused"):
        life.require_open()


def test_call_on_a_closed_connection_says_so() -> None:
    life = a_life(Clock())
    assert life.close()
    assert not life.close()
    with pytest.raises(errors.ClientClosedError, match=r"closed since 2023.*close\(\)"):
        life.require_open()
    life.lost("too late")
    life.answered()
    assert told(life) == []


@pytest.mark.parametrize("policy", ["producer", "all"])
def test_a_wait_in_vain_and_a_stale_object_are_one_class_r21(policy: str) -> None:
    clock = Clock()
    life = a_life(clock, policy)
    life.lost("refused")
    patience = Patience(life)
    patience.spend()
    clock.now += 6
    with pytest.raises(errors.StaleConnectionError, match=r"a:1,b:2.*within 6 s: refused"):
        patience.spend()


def test_total_time_counts_from_the_last_call_r42() -> None:
    clock = Clock()
    life = a_life(clock, total_ms=10_000)
    life.lost("refused")
    clock.now += 8
    life.require_open()
    clock.now += 9.9
    life.tick()
    assert life.ended is None
    clock.now += 0.2
    life.tick()
    assert life.state is ConnectionState.STALE
    assert isinstance(told(life)[-1], errors.ReconnectGivenUpError)
    with pytest.raises(errors.ReconnectGivenUpError, match="for 10 s: refused"):
        life.require_open()


def test_without_calls_the_total_time_counts_from_the_loss_and_minus_one_is_for_ever_r42() -> None:
    clock = Clock()
    limited, endless = a_life(clock, total_ms=10_000), a_life(clock)
    for life in (limited, endless):
        life.lost("refused")
    clock.now += 10
    limited.tick()
    clock.now += 1e6
    endless.tick()
    assert (limited.state, endless.state) == (ConnectionState.STALE, ConnectionState.RECONNECTING)


def waited(clock: Clock, life: Life, timeout: float, on_second: Callable[[float], None] = lambda now: None) -> float:
    """How long a call with a time of its own waits, in half seconds."""
    begun, patience = clock.now, Patience(life)
    while True:
        on_second(clock.now - begun)
        is_late = clock.now - begun >= timeout
        try:
            patience.spend(is_late)
        except errors.ReconnectTimeoutError:
            return clock.now - begun
        assert not is_late, "it returned nothing"
        clock.now += 0.5


def test_receive_waits_the_smaller_of_its_time_and_the_blocking_time_r44() -> None:
    clock = Clock()
    life = a_life(clock, "all")
    life.lost("refused")
    assert waited(clock, life, 2) == 2
    assert waited(clock, life, 20) == 6
    assert waited(clock, life, 0) == 0
    life.answered()
    assert waited(clock, life, 12, lambda second: life.lost("refused") if second == 10 else None) == 12


def test_blocking_time_of_zero_never_waits_and_minus_one_is_for_ever_r19() -> None:
    clock = Clock()
    never, ever = a_life(clock, blocking_ms=0), a_life(clock, blocking_ms=-1)
    for life in (never, ever):
        life.lost("refused")
    with pytest.raises(errors.ReconnectTimeoutError):
        Patience(never).spend()
    patience = Patience(ever)
    patience.spend()
    clock.now += 1e6
    patience.spend()
    assert not patience.is_over


def test_client_settings_of_the_file_count_unless_an_argument_says_otherwise_r40(tmp_path: Path) -> None:
    file = tmp_path / "uow.toml"
    file.write_text(
        '[application]\nbootstrap_servers = "k:9"\n[client]\nreconnect_policy = "none"\nreconnect_total_ms = 7\n'
    )
    factory = uow.ConnectionFactory.from_config(file)
    assert (factory._policy, factory._waits, factory._servers) == (ReconnectPolicy.NONE, Waits(6000, 7), "k:9")
    factory = uow.ConnectionFactory.from_config(file, reconnect_policy="all", servers="other:9")
    assert (factory._policy, factory._waits, factory._servers) == (ReconnectPolicy.ALL, Waits(6000, 7), "other:9")
    with pytest.raises(errors.ConfigError, match=r"transaction_timeout_ms.*900000"):
        uow.ConnectionFactory("k:9", transaction_timeout_ms=900_001)


def test_worker_says_in_one_line_what_it_does_not_follow_r52(tmp_path: Path) -> None:
    file = tmp_path / "uow.toml"
    file.write_text('[client]\nreconnect_policy = "all"\nrollback_on_refresh = true\n')
    note = load(file, {}).without_effect_on_workers
    assert note.endswith("client.reconnect_policy, client.rollback_on_refresh")
    assert "\n" not in note
    file.write_text("")
    assert load(file, {}).without_effect_on_workers == ""


def test_one_shot_commands_never_reconnect_whatever_the_file_says_r07(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[ReconnectPolicy] = []

    def connect(factory: uow.ConnectionFactory) -> uow.Connection:
        policies.append(factory._policy)
        raise errors.ReconnectTimeoutError("no broker, by script")

    monkeypatch.setattr(uow.ConnectionFactory, "connect", connect)
    file = tmp_path / "uow.toml"
    file.write_text('[client]\nreconnect_policy = "all"\n[destinations.d]\nhandling_policy = "pass_through"\n')
    for command in (["send", "d"], ["read", "d"], ["cancel", "d", "a", "--why", "x"]):
        result = CliRunner().invoke(main, [*command, "-c", str(file)], input="x")
        assert result.exit_code == 1
        refused = CliRunner().invoke(main, [*command, "-c", str(file), "--reconnect", "all"], input="x")
        assert (refused.exit_code, "--reconnect" in refused.output) == (2, True)
    assert policies == [ReconnectPolicy.NONE] * 3
