"""`connection.fan_out`: a manifest and its requests in one transaction (B-77 to B-91)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure

import uow
from tests.fake_record import T0
from uow import aio
from uow.client.session_state import Waits
from uow.errors import ConfigError, DecodeError, ReconnectTimeoutError, RoutingError, TransactionRolledBackError
from uow.processor.rules.mirror import mirrored, version_alone
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.commands import Command, Verb, read_command
from uow.topics.rules import Change, Numbering, Parameter, Row, Rule

RULE = Rule("trips", 1, "supply", group_key="request", sequence=Numbering.GIVEN)
ROW = Row("trips", "*", 1, complete_when="manifest", target_topic="trips.done", age_ms=5_000)
NAMED = replace(ROW, routing_name="trip", target_topic=None)
REQUESTS = [
    uow.Request("hotels", {"city": "Rome"}, reply_to="replies"),
    uow.Request("flights", b"there", folder="flight", key="k", headers={"x": "1", "uow-request-id": "mine"}),
    uow.Request("flights", b"back", folder="flight"),
]


def rules(*rules: Rule, rows: tuple[Row, ...] = (ROW, NAMED), topics: str = "trips.mine") -> bytes:
    """All rules as a router keeps them."""
    tables = RuleTables(
        (Change(1, "a test", "to see", T0),),
        rules or (RULE,),
        rows,
        parameters=(Parameter("reply_topics", 1, topics), Parameter("notice_topics", 1, "hotels.cancelled")),
    )
    return mirrored(RuleSet(tables))


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.records = [consumed(rules(), key=b"rules", topic="shop-rules")]
    return fake


@pytest.fixture
def connection(fake: FakeBroker) -> Any:
    with fake.connect(application="shop") as connection:
        yield connection


def test_manifest_and_requests_are_one_transaction_b77_b78_b79(fake: FakeBroker, connection: uow.Connection) -> None:
    call = connection.fan_out("supply", "trip", REQUESTS, timeout_ms=7_000)
    assert [sent.topic() for sent in fake.visible] == ["shop-rules", "supply.commands", "hotels", "flights", "flights"]
    assert fake.calls.count("commit_transaction") == 1
    row, order, *requests = fake.visible
    command = read_command(order.headers, order.value)
    assert isinstance(command, Command)
    assert (command.verb, command.group_id, order.key) == (Verb.MANIFEST, call.id.encode(), call.id.encode())
    assert row.key == command.rule.encode() == b"trips/trip@1"
    assert command.manifest == uow.Manifest(
        "trip",
        (
            uow.RequestEntry("hotels", "hotels"),
            uow.RequestEntry("flight", "flights"),
            uow.RequestEntry("flight", "flights"),
        ),
        7_000,
    )
    assert call.id.startswith("trips/trip/")
    assert [sent.marks["uow-request-id"].decode() for sent in requests] == [*call.request_ids]
    assert [*call.request_ids] == [f"{call.id}.{number}" for number in (1, 2, 3)]
    assert requests[0].marks["uow-reply-to"] == b"replies"
    assert (requests[0].key, requests[1].key, requests[1].marks["x"]) == (call.request_ids[0].encode(), b"k", b"1")
    assert [sent.value for sent in requests] == [b'{"city":"Rome"}', b"there", b"back"]
    assert call.topic == "supply.units"


def test_each_call_has_an_id_of_its_own_and_a_known_row_is_not_written_again_b85(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    fake.records.append(consumed(b"{}", key=b"trips/trip@1", topic="shop-rules", offset=1))
    first, second = (connection.fan_out("supply", "trip", REQUESTS[:1], timeout_ms=each) for each in (1, 2))
    assert first.id != second.id
    assert [sent.topic() for sent in fake.visible] == ["supply.commands", "hotels"] * 2


def test_a_call_may_ask_for_a_topic_that_the_rules_name_b91(fake: FakeBroker, connection: uow.Connection) -> None:
    context = uow.ReplyContext("trips.mine", "key", "q", (("x", "1"),))
    call = connection.fan_out("supply", "other", REQUESTS, reply=context)
    assert call.topic == "trips.mine"
    assert connection.fan_out("supply", "other", REQUESTS).topic == "trips.done"
    command = read_command(fake.visible[1].headers, fake.visible[1].value)
    assert isinstance(command, Command)
    assert command.manifest is not None
    assert command.manifest.reply == context


def test_requests_have_weights_and_topics_for_notices_that_the_rules_name_b209(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    requests = [uow.Request("hotels", weight=3, notice_topic="hotels.cancelled"), uow.Request("flights")]
    connection.fan_out("supply", "trip", requests)
    command = read_command(fake.visible[1].headers, fake.visible[1].value)
    assert isinstance(command, Command)
    assert command.manifest is not None
    assert command.manifest.requests == (
        uow.RequestEntry("hotels", "hotels", 3, "hotels.cancelled"),
        uow.RequestEntry("flights", "flights", 1, None),
    )


def test_a_service_sees_which_request_a_notice_cancels_b209(fake: FakeBroker, connection: uow.Connection) -> None:
    mark = ("uow-request-id", b"trips/trip/1.2")
    said: list[Any] = [
        [("uow-kind", b"notice"), mark],
        [mark],
        [("uow-kind", b"notice")],
        [("uow-kind", b"unit"), mark],
    ]
    for offset, headers in enumerate(said):
        fake.records.append(consumed(b"{}", topic="hotels.cancelled", offset=offset, headers=headers))
    with connection.messages("hotels.cancelled", group="hotels") as reader:
        found = [reader.receive(5) for _ in said]
    assert [each and each.cancels for each in found] == ["trips/trip/1.2", None, None, None]


@pytest.mark.parametrize(
    ("about", "error"),
    [
        ({"reply": uow.ReplyContext("elsewhere")}, ConfigError),
        ({"reply": uow.ReplyContext(headers=(("uow-id", "x"),))}, DecodeError),
        ({"requests": []}, DecodeError),
        ({"requests": [uow.Request("t", folder=" ")]}, DecodeError),
        ({"requests": [uow.Request("t", weight=0)]}, DecodeError),
        ({"requests": [uow.Request("t", weight=1.5)]}, DecodeError),  # type: ignore[arg-type]
        ({"requests": [uow.Request("t", notice_topic=" ")]}, DecodeError),
        ({"requests": [uow.Request("t", notice_topic="flights.cancelled")]}, ConfigError),
        ({"requests": [uow.Request("t")] * 3_000}, DecodeError),
        ({"name": " "}, DecodeError),
        ({"timeout_ms": -1}, DecodeError),
        ({"rule": "none"}, ConfigError),
        ({"destination": "other"}, ConfigError),
    ],
)
def test_what_cannot_be_called_is_told_and_nothing_is_sent(
    fake: FakeBroker, connection: uow.Connection, about: dict[str, Any], error: type[Exception]
) -> None:
    given: dict[str, Any] = {"destination": "supply", "name": "trip", "requests": REQUESTS} | about
    with pytest.raises(error):
        connection.fan_out(**given)
    assert fake.visible == []


def test_a_rule_is_named_where_several_gather_replies(fake: FakeBroker, connection: uow.Connection) -> None:
    other = replace(RULE, rule_id="tours", group_key="request:key")
    fake.records = [consumed(rules(RULE, other, rows=(NAMED,)), key=b"rules", topic="shop-rules")]
    with pytest.raises(ConfigError, match="several"):
        connection.fan_out("supply", "trip", REQUESTS)
    assert connection.fan_out("supply", "trip", REQUESTS, rule="trips").id.startswith("trips/")
    with pytest.raises(RoutingError, match="other"):
        connection.fan_out("supply", "other", REQUESTS, rule="trips")


def test_a_call_needs_the_rules_of_an_application(fake: FakeBroker) -> None:
    with fake.connect() as nameless, pytest.raises(ConfigError, match="application"):
        nameless.fan_out("supply", "trip", REQUESTS)
    fake.records = []
    with fake.connect(application="shop") as early, pytest.raises(ConfigError, match="none in shop-rules"):
        early.fan_out("supply", "trip", REQUESTS)
    fake.records = [consumed(version_alone(2), key=b"rules", topic="shop-rules")]
    with fake.connect(application="shop") as large, pytest.raises(ConfigError, match="version 2 is too large"):
        large.fan_out("supply", "trip", REQUESTS)


@pytest.mark.parametrize("value", [b"[]", None, version_alone(2)])
def test_a_record_that_is_no_set_of_rules_takes_none_away(fake: FakeBroker, value: bytes | None) -> None:
    fake.records.append(consumed(value, key=b"rules", topic="shop-rules", offset=1))
    with fake.connect(application="shop") as connection:
        assert connection.fan_out("supply", "trip", REQUESTS).id.startswith("trips/")


def test_rules_that_are_read_in_part_decide_nothing(fake: FakeBroker) -> None:
    fake.ends["shop-rules", 0] = 2  # nobody hands out the second one
    with fake.connect(application="shop", reconnect_blocking_ms=50) as slow:
        with pytest.raises(ReconnectTimeoutError, match=r"shop-rules was read to [01] of 2"):
            slow.fan_out("supply", "trip", REQUESTS)
        assert fake.visible == []
        slow._session.life.waits = Waits()
        fake.records.append(consumed(None, key=b"trips/trip@1", topic="shop-rules", offset=1))
        slow.fan_out("supply", "trip", REQUESTS[:1])
        assert [sent.topic() for sent in fake.visible] == ["supply.commands", "hotels"]


def test_a_call_that_cannot_be_committed_leaves_nothing_behind(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.script["commit_transaction"] = [failure(KafkaError.INVALID_TXN_STATE, abort=True)]
    with pytest.raises(TransactionRolledBackError):
        connection.fan_out("supply", "trip", REQUESTS, awaits=True)
    assert fake.visible == []
    assert all(each.closed for each in fake.consumers if "supply.units" in {topic for topic, _ in each.positions})


def test_the_message_that_caused_a_call_is_done_with_in_its_transaction(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    fake.records.append(consumed(b"a trip", topic="trips.wanted"))
    fake.ends["shop-rules", 0] = 1
    with connection.messages("trips.wanted", group="g") as reader:
        message = reader.receive(5)
        assert message is not None
        connection.fan_out("supply", "trip", REQUESTS, cause=message)
        assert fake.committed["trips.wanted", 0][0] == 1
    assert fake.calls.count("commit_transaction") == 1


def test_only_a_call_that_says_so_can_be_waited_for_b90(fake: FakeBroker, connection: uow.Connection) -> None:
    with pytest.raises(ConfigError, match="awaits"):
        connection.fan_out("supply", "trip", REQUESTS).unit(0)
    call = connection.fan_out("supply", "trip", REQUESTS, awaits=True)
    assert call.unit(0) is None
    call.close()


def test_a_call_is_the_same_in_the_event_loop(fake: FakeBroker) -> None:
    async def play() -> None:
        async with await aio.connect("fake:9092", kafka_port=fake, application="shop") as connection:
            call = await connection.fan_out("supply", "trip", REQUESTS, awaits=True)
            assert [*call.request_ids] == [f"{call.id}.{number}" for number in (1, 2, 3)]
            assert await call.unit(0) is None
            await call.close()

    asyncio.run(play())
    assert len(fake.visible) == 5
