"""`docs/weblogic.md`: each example runs, over handles in memory, and does what the page says of it."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_handles import FakeBroker, consumed
from test_client_paths import FakeLog
from test_client_readers import a_unit, record_of

import uow
from uow import errors
from uow.client import session
from uow.config.loading import load
from uow.topics.policies import ExpirationPolicy, HandlingPolicy, Routing
from uow.topics.strict_registry import Era, EraTopic, StrictRules

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "weblogic.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    """Each example of a language, with the heading above it."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        found += [(heading, code) for code in re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    return found


EXAMPLES = blocks("python")


class Stage:
    """One example's world: its names, what it said, and handles in memory."""

    def __init__(self, fake: FakeBroker, folder: Path) -> None:
        self.fake, self.folder, self.said = fake, folder, list[Any]()
        self.names: dict[str, Any] = {"uow": uow, "print": lambda *words: self.said.extend(words)}

    def play(self, heading: str, number: int = 0) -> None:
        code = [code for each, code in EXAMPLES if each == heading][number]
        program = self.folder / "example.py"
        program.write_text(code, encoding="utf-8")
        self.names |= runpy.run_path(str(program), self.names)

    def outage(self) -> None:
        """All brokers gone, and back; with them went the membership in groups of whatever is not refreshed."""
        for each in session.OPEN.values():
            each.life.lost("Connection refused")
            each.life.answered()

    def moved_away_and_back(self) -> None:
        for what in ("revoke", "assign"):
            self.fake.readers_of("megazon.units")[-1].moved(what, 0, topic="megazon.units")

    @property
    def sent(self) -> list[dict[str, bytes]]:
        return [dict(each.headers) for each in self.fake.visible]


@pytest.fixture
def stage(fake: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    connect = uow.connect
    monkeypatch.setattr(uow, "connect", lambda servers, **given: connect(servers, kafka_port=fake, **given))
    fake.topics = {
        "megazon.components": 4,
        "megazon.units": 1,
        "megazon.errors": 1,
        "bridge": 1,
        "requests": 1,
    }
    yield Stage(fake, tmp_path)
    assert not {each.id for each in session.OPEN.values() if each.handles._port is fake}


def of_weblogic(number: int) -> list[tuple[str, bytes | None]]:
    return [
        ("JMS_BEA_UnitOfWork", b"order-7"),
        ("JMS_BEA_UnitOfWorkSequenceNumber", b"%d" % number),
        ("JMS_BEA_IsUnitOfWorkEnd", b"true" if number == 2 else b"false"),
    ]


def unit_of_work(stage: Stage) -> None:
    stage.play("A unit of work", 0)
    marks = [(each["uow-id"], each["uow-seq"], each.get("uow-end")) for each in stage.sent]
    assert marks == [(b"order-7", b"1", None), (b"order-7", b"2", b"true")]
    assert stage.fake.calls.count("commit_transaction") == 1
    stage.fake.records = [record_of(a_unit("order-7"))]
    stage.play("A unit of work", 1)
    assert stage.said == ["order-7", [{"item": "book"}, None]]
    assert stage.fake.committed["megazon.units", 0][0] == 1


def producers_that_stay(stage: Stage) -> None:
    stage.fake.records = [
        consumed(b"x", key=None, headers=of_weblogic(n), topic="bridge", offset=n - 1) for n in (1, 2)
    ]
    stage.play("Producers that stay")
    assert [(each.name, each.key) for each in stage.fake.visible] == [("megazon.components", b"order-7")] * 2
    assert [each["JMS_BEA_UnitOfWorkSequenceNumber"] for each in stage.sent] == [b"1", b"2"]
    assert stage.fake.committed["bridge", 0][0] == 2


def transacted_session(stage: Stage) -> None:
    stage.fake.records = [consumed(b"order", topic="requests")]
    stage.play("A transacted session")
    assert len(stage.sent) == 2
    assert stage.fake.committed["requests", 0][0] == 1
    assert stage.fake.calls.count("commit_transaction") == 1


def reconnect(stage: Stage) -> None:
    stage.names["outage"] = stage.outage
    stage.fake.records = [record_of(a_unit("order-7")), record_of(a_unit("order-8"), 1)]
    stage.play("Reconnect by default", 0)
    assert [each["uow-id"] for each in stage.sent] == [b"order-8"]
    (stale,) = [each for each in stage.said if isinstance(each, errors.StaleConnectionError)]
    assert re.search("all brokers of localhost:9092 were gone.* since|since.* all brokers", str(stale))
    assert stage.names["again"].id == stage.names["unit"].id == "order-7"
    assert {type(each) for each in stage.said} >= {uow.ConnectionLost, uow.ConnectionRefreshed}
    stage.play("Reconnect by default", 1)
    assert stage.names["again"].id == "order-8"


def migration(stage: Stage) -> None:
    stage.names["moved_away_and_back"] = stage.moved_away_and_back
    stage.fake.records = [record_of(a_unit("order-7"))]
    stage.play("Migration with consumers attached")
    names = stage.names
    assert (names["again"].id, names["again"] is names["first"]) == ("order-7", False)
    assert names["again"].redelivered is not False
    assert [each.first_uncommitted for each in names["heard"]] == [{("megazon.units", 0): 0}]
    assert stage.fake.committed["megazon.units", 0][0] == 1


def strict(stage: Stage) -> None:
    topics = {"megazon.units": EraTopic("", (0,)), "megazon.components": EraTopic("", (0, 0, 0, 0))}
    written = [StrictRules(strict_group="invoicing"), Era(1, topics, 1, "by test", "test")]
    stage.fake.topics["megazon.registry"] = 1
    stage.fake.records = [
        consumed(each.value(), key=each.key(), topic="megazon.registry", offset=offset)
        for offset, each in enumerate(written)
    ]
    stage.fake.records += [record_of(a_unit(f"order-{number}"), number) for number in range(3)]
    seen: list[str] = []

    def invoice(unit: uow.ReceivedUnit) -> None:
        seen.append(unit.id)
        if seen.count(unit.id) == 1 and unit.id == "order-1":
            raise ZeroDivisionError("no price")
        if unit.id == "order-2":
            sys._getframe(1).f_globals["reader"].stop()

    stage.names["invoice"] = invoice
    stage.play("Strict order over a failing consumer", 0)
    assert seen == ["order-0", "order-1", "order-1", "order-2"]
    (blocked,) = [each for each in stage.said if isinstance(each, uow.OrderBlocked)]
    assert (blocked.position, blocked.cause) == (1, "ZeroDivisionError: no price")
    stage.play("Strict order over a failing consumer", 1)
    assert "strict_group" in str(stage.said[-1])


def routing(stage: Stage) -> None:
    stage.fake.topics["shop-megazon-path-map"] = 1
    stage.play("Hash and path routing")
    (line, placed), (unit, partition) = FakeLog.claims
    assert (b"jill" in line, unit, partition) == (True, b"order-7", placed)
    assert {each.to for each in stage.fake.visible} == {placed}


STORIES: dict[str, Callable[[Stage], None]] = {
    "A unit of work": unit_of_work,
    "Producers that stay": producers_that_stay,
    "A transacted session": transacted_session,
    "Reconnect by default": reconnect,
    "Migration with consumers attached": migration,
    "Strict order over a failing consumer": strict,
    "Hash and path routing": routing,
}


@pytest.mark.parametrize("heading", dict.fromkeys(heading for heading, _ in EXAMPLES))
def test_each_example_does_what_the_page_says(heading: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLog.claims, FakeLog.doubts = [], 0
    monkeypatch.setattr(session, "KafkaPathLog", FakeLog)
    STORIES[heading](stage)


def test_each_configuration_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for heading, text in blocks("toml"):
        (tmp_path / "uow.toml").write_text(text)
        found.append((heading, load(tmp_path / "uow.toml", {}).policy("megazon")))
    (_, plain), (_, ordered), (_, routed) = found
    assert plain.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY
    assert (plain.incomplete_expiration_ms, plain.redelivery_limit) == (86_400_000, 3)
    assert plain.expiration_policy is ExpirationPolicy.REDIRECT
    assert (ordered.strict_order, ordered.strict_group) == (True, "invoicing")
    assert routed.routing is Routing.PATH


def test_each_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(\w+/\w+\.py)::(\w+)`", PAGE)
    assert len(named) > 5
    assert [name for file, name in named if f"def {name}(" not in (TESTS / file).read_text(encoding="utf-8")] == []
