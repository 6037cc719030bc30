"""Fan-out and fan-in on a real broker: the example's calls and services, a worker that is killed, replies before their manifest (B-77 to B-91)."""

from __future__ import annotations

import json
import signal
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import uow
from examples.fan_out import trip
from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.client import fan_out

pytestmark = pytest.mark.timeout(300)
CALLS, ANSWERED = 100, 8


def answer_all(place: Destination, topic: str, count: int) -> None:
    """A service of the example answers so many requests."""
    with uow.connect(place.bootstrap) as connection, connection.messages(topic, group=topic) as requests:
        for _ in range(count):
            request = requests.receive(PATIENCE_S)
            assert request is not None
            trip.answer(connection, request)


def test_calls_come_back_whole_whatever_came_first_and_whoever_was_killed_b81_b88_b90(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred calls before any service answers; one service answers the first eight, the worker is killed, the other one answers; two calls are answered differently."""
    routed, prefix = RoutedPlace(place, {trip.REPLIES: 2}), f"{place.name}."
    row = {"complete_when": "manifest", "age_ms": 600_000, "value_format": "json", "target_topic": "trips"}
    routed.put_rules({"*": row}, group_key="request", sequence="given")
    with routed.rules.open("a") as rules:
        rules.write(f'\n[parameter]\nnotice_topics = "{prefix}{trip.CANCELLED}"\n')
    routed.create({"session_timeout_ms": 2000})
    hotels, flights = (prefix + service for service in trip.SERVICES)
    admin = AdminClient({"bootstrap.servers": place.bootstrap})  # kept: its calls go on in its own thread
    new = admin.create_topics([NewTopic(each, 1, 1) for each in (hotels, flights)])
    for each in new.values():
        each.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})

    def reply(request_id: str, value: bytes) -> None:
        headers = [("uow-correlation-id", request_id.encode())]
        producer.produce(routed.inputs[trip.REPLIES], value, headers=headers)  # type: ignore[arg-type]
        assert not producer.flush(PATIENCE_S)

    early = "low-stock/trip/00000000000000000000000000000007"
    reply(f"{early}.2", b'"early"')
    doomed = place.worker()
    wait_for(lambda: len(place.read(place.components)) == 1)  # its manifest has not been sent
    with uow.connect(place.bootstrap, application=f"A-{place.name}") as connection:
        calls = [trip.ask(connection, f"city {number}", place.name, prefix) for number in range(CALLS)]
        unanswered = connection.fan_out(place.name, "trip", [uow.Request(hotels)], 1_000, awaits=True)
        with monkeypatch.context() as patched:
            patched.setattr(fan_out, "uuid4", lambda: UUID(int=7))
            context = uow.ReplyContext(correlation_id="q", headers=(("x", "1"),))
            adopted = connection.fan_out(
                place.name,
                "trip",
                [uow.Request(hotels, folder="a"), uow.Request(hotels, folder="b")],
                reply=context,
                awaits=True,
            )
        assert adopted.id == early
        assert len(place.read(place.components)) == 1  # all calls returned before the first reply (B-90)
        answer_all(place, hotels, ANSWERED)
        wait_for(lambda: len(place.read(place.components)) == 1 + ANSWERED)
        doomed.child.signal(signal.SIGKILL)
        assert doomed.child.wait(PATIENCE_S) == 128 + signal.SIGKILL
        answer_all(place, flights, 2 * ANSWERED)
        reply(f"{early}.1", b'"late enough"')
        reply("", b'"of nobody"')
        place.worker()
        trips = [call.unit(PATIENCE_S) for call in calls[:ANSWERED]]
        for number, made in enumerate(trips):
            assert made is not None
            assert (made.outcome, made.reason) == (uow.UnitOutcome.COMPLETE, uow.Reason.MANIFEST)
            told = {folder: [each.json()["offer for"] for each in offers] for folder, offers in made.folders.items()}
            city = f"city {number}"
            assert told == {"hotel": [{"city": city}], "flight": [{"to": city}, {"from": city}]}
        empty, whole = unanswered.unit(PATIENCE_S), adopted.unit(PATIENCE_S)
        assert empty is not None
        assert (empty.outcome, len(empty.components), empty.folders) == (uow.UnitOutcome.PARTIAL, 0, {hotels: []})
        assert whole is not None
        assert [each.json() for each in whole.components] == ["late enough", "early"]
        assert (whole.header("x"), whole.header("uow-correlation-id")) == ("1", "q")
    (document,) = [record.value() for record in place.read(routed.topic("trips")) if record.key() == early.encode()]
    assert json.loads(document)["folders"] == {"a": [1], "b": [2]}
    assert len(place.read(routed.topic("trips"))) == ANSWERED + 2
    (refused,) = place.read(f"{place.name}.rejected")
    assert dict(refused.headers())["uow-error-case"] == b"no-correlation"
