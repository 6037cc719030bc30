"""Whose transaction holds a partition, and which one may be ended: never a healthy one, never one that is not known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.config.loading import Settings, load
from uow.ops import open_transactions as transactions
from uow.ops import order_checks
from uow.ops.open_transactions import OpenTransaction, end_transaction
from uow.schemas.error_classes import ConfigError

PLACE = ("D.components", 0)
HOUR_MS = 3_600_000
NOW = int(time.time() * 1000)
TOML = '[application]\nid = "A"\nbootstrap_servers = "nowhere:1"\n[destinations.D]\nhandling_policy = "single_message_delivery"\n'


def ago(ms: int) -> int:
    return NOW - ms


def transaction(name: str, since: int, *topics: str) -> OpenTransaction:
    return OpenTransaction(name, 1, since, frozenset((topic, 0) for topic in topics or (PLACE[0],)))


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[None]:
    """It stands still, however long the tests take."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transactions, "wall_clock_ms", lambda: NOW)
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    file = tmp_path_factory.mktemp("holders") / "uow.toml"
    file.write_text(TOML)
    return load(file, {})


def told(settings: Settings, *known: OpenTransaction) -> str:
    """What the one finding and its remedy say of a partition that is held since an hour."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(order_checks, "open_transactions", lambda _: [*known])
        (found,) = order_checks._hanging(settings, {PLACE: order_checks.Ends(0, 9, ago(HOUR_MS))})
    return f"{found.what} -> {found.remedy}"


def test_a_healthy_transaction_is_not_blamed_whatever_the_order(settings: Settings) -> None:
    lost, healthy = transaction("lost", ago(HOUR_MS)), transaction("healthy", ago(500))
    for known in ((lost, healthy), (healthy, lost)):
        assert "--end-transaction lost" in told(settings, *known)
        assert "healthy" not in told(settings, *known)


def test_one_that_the_coordinator_has_forgotten_is_unknown(settings: Settings) -> None:
    later = transaction("later", ago(HOUR_MS // 2))
    assert "is unknown" in told(settings, later, transaction("healthy", ago(500)))
    assert "--end-transaction" not in told(settings, later)


@given(st.lists(st.integers(0, 2 * HOUR_MS), max_size=4))
def test_a_name_is_given_only_to_the_one_that_can_be_it(settings: Settings, ages: list[int]) -> None:
    said = told(settings, *(transaction(f"id{number}", ago(age)) for number, age in enumerate(ages)))
    can_be = [number for number, age in enumerate(ages) if age >= HOUR_MS - order_checks.CLOCKS_MS]
    named = [number for number in range(len(ages)) if f"--end-transaction id{number}`" in said]
    assert named == (can_be if len(can_be) == 1 else [])


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids that were taken over; known are a hanging one, a young one, and one of somebody else."""
    taken: list[str] = []

    class Taken:
        def __init__(self, properties: dict[str, Any], logger: object) -> None:
            taken.append(properties["transactional.id"])

        def init_transactions(self, timeout: float) -> None:
            pass

    known = [transaction("lost", ago(HOUR_MS)), transaction("young", ago(500))]
    known.append(transaction("stranger", ago(HOUR_MS), "Dother.units", "__consumer_offsets"))
    monkeypatch.setattr(transactions, "open_transactions", lambda _: known)
    monkeypatch.setattr(transactions, "Producer", Taken)
    return taken


def test_a_hanging_transaction_of_this_application_is_ended(settings: Settings, ended: list[str]) -> None:
    end_transaction(settings, "lost")
    assert ended == ["lost"]


@pytest.mark.parametrize(("name", "why"), [("young", "still be at work"), ("stranger", "no topic of this application")])
def test_others_are_ended_by_force_alone(settings: Settings, ended: list[str], name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        end_transaction(settings, name)
    assert ended == []
    end_transaction(settings, name, is_forced=True)
    assert ended == [name]


@pytest.mark.parametrize("is_forced", [True, False])
def test_a_mistyped_id_is_an_error_and_not_made(settings: Settings, ended: list[str], is_forced: bool) -> None:
    with pytest.raises(ConfigError, match="nothing is open"):
        end_transaction(settings, "lots", is_forced=is_forced)
    assert ended == []
