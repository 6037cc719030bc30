"""Units of shape `reference`: fetched where their components stayed, checked, or moved away whole (W-117, W-208)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed
from test_client_runs import UNITS, on_topic

import uow
from tests.core.script import TOPICS, Step, Story, c, plain, story
from uow import errors
from uow.client import references
from uow.client.kafka_port import ConsumerHandle
from uow.topics.policies import Oversize, Shape

INPUT = TOPICS.components


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 1, INPUT: 1, TOPICS.errors: 1}
    return fake


SCRIPT: list[Step] = [
    c(2, value="two", user=[("colour", "red")], end=True, id="a"),
    plain("between"),
    c(1, value="b", end=True, id="b"),
    c(1, value="one", id="a"),
]


def deliver(fake: FakeBroker, *steps: Step, **settings: object) -> Story:
    """The input as it lies in its topic, and the units that a worker made of it."""
    settings.setdefault("shape", Shape.REFERENCE)
    played = story(*steps, **settings)
    sent = story(*steps).records([step for step in steps if not isinstance(step, list)])  # type: ignore[misc]
    fake.records += [
        consumed(
            record.value(),
            key=record.key(),
            headers=record.headers(),
            topic=INPUT,
            offset=offset,
            timestamp=record.timestamp()[1],
        )
        for offset, record in enumerate(sent)
    ]
    fake.records += on_topic([output for output in played.outputs if output.topic == UNITS])
    return played


def test_a_unit_of_references_is_handed_out_like_an_envelope_w117(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, *SCRIPT)
    whole = {unit.id: unit for unit in story(*SCRIPT).units}
    reader = connection.units("D", group="g")
    for name in ("b", "a"):
        unit = next(reader)
        assert unit.record == whole[name]
        assert [component.record for component in unit.components] == list(whole[name].components)
        unit.acknowledge()


def test_components_are_read_in_order_of_offsets_with_jumps_over_what_is_far_w117(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = [c(1, id=f"open-{number}") for number in range(50)]
    deliver(fake, c(2, end=True, id="a"), *between, c(1, id="a"))
    assert next(connection.units("D", group="g")).id == "a"
    assert fake.assigned == [[0]]
    monkeypatch.setattr(references, "JUMP_BYTES", 5_000)
    next(connection.units("D", group="h"))
    assert fake.assigned == [[0], [0], [51]]


def test_a_stream_fetches_portions_in_number_order_w117(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uow.client.streaming.PORTION_BYTES", 10)
    deliver(fake, *[c(number, value="12345", end=number == 6, id="a") for number in (4, 6, 2, 1, 3, 5)])
    unit = next(connection.stream("D", group="g"))
    assert [component.seq for component in unit.components] == [1, 2, 3, 4, 5, 6]
    unit.acknowledge()
    assert fake.committed[UNITS, 0][0] == 1


def test_large_and_small_units_come_alike_through_one_loop_w208(fake: FakeBroker, connection: uow.Connection) -> None:
    big = "x" * 5_000
    script = [c(1, id="small", end=True), c(1, id="large", value=big), c(2, id="large", value=big, end=True)]
    for oversize in (Oversize.CONSECUTIVE, Oversize.REFERENCE):
        fake.records = []
        deliver(fake, *script, shape=Shape.ENVELOPE, oversize=oversize, record_limit_bytes=8_000)
        reader = connection.units("D", group=oversize)
        found = [
            (unit.id, [len(component.text()) for component in unit.components]) for unit in (next(reader), next(reader))
        ]
        assert found == [("small", [10]), ("large", [5_000, 5_000])]


def gone_by_retention(fake: FakeBroker) -> None:
    fake.starts[INPUT, 0] = 2


def gone_from_the_middle(fake: FakeBroker) -> None:
    fake.records = [record for record in fake.records if (record.topic(), record.offset()) != (INPUT, 0)]


def another_value(fake: FakeBroker) -> None:
    fake.records[0].value_ = b"tow"


def another_time(fake: FakeBroker) -> None:
    fake.records[0].at += 1


DAMAGES: dict[Callable[[FakeBroker], None], str] = {
    gone_by_retention: "component 2, D.components/0/0, is not there any more",
    gone_from_the_middle: "component 2, D.components/0/0, is not there any more",
    another_value: "the record at the place of component 2, D.components/0/0, is another one",
    another_time: "the record at the place of component 2, D.components/0/0, is another one",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_component_that_is_gone_or_changed_moves_the_unit_to_errors_and_reading_goes_on_w117(
    fake: FakeBroker, connection: uow.Connection, damage: Callable[[FakeBroker], None], streamed: bool
) -> None:
    """The position moves in the same transaction, once what was handed out before is acknowledged."""
    deliver(fake, *SCRIPT, c(1, end=True, id="next"))
    moved = next(record for record in fake.records if record.topic() == UNITS and record.key() == b"a")
    damage(fake)
    reader = connection.stream("D", group="g") if streamed else connection.units("D", group="g")
    before = next(reader)
    if streamed:  # handed out already: whoever asks for its components is told
        with pytest.raises(errors.DecodeError, match=DAMAGES[damage]) as caught:
            list(next(reader).components)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == (UNITS, 0, 2)
    else:
        assert reader.receive(0) is None
    assert fake.visible == []
    before.acknowledge()
    fake.starts, fake.records[-1].offset_ = {}, 3
    assert next(reader).id == "next"
    (found,) = fake.visible
    assert DAMAGES[damage].encode() in found.marks["uow-error-text"]
    assert (found.topic(), found.key, found.value) == (TOPICS.errors, moved.key(), moved.value())
    assert found.headers[: len(moved.headers())] == moved.headers()
    assert found.marks["uow-kind"] == b"unit"
    assert (found.marks["uow-failure-reason"], found.marks["uow-error-class"]) == (b"failed", b"DecodeError")
    assert (found.marks["uow-error-case"], found.marks["uow-source"]) == (b"reference", b"D.units/0/2")
    assert fake.committed[UNITS, 0][0] == 3


def test_a_look_without_a_group_moves_nothing_w117(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, *SCRIPT)
    gone_by_retention(fake)
    reader = connection.units("D", group=None, start="earliest")
    assert next(reader).id == "b"
    assert reader.receive(0) is None
    assert (reader.given_up, fake.visible) == ({"failed": 1}, [])


def test_a_broker_that_does_not_answer_is_no_fault_of_the_unit_which_comes_again_w117(fake: FakeBroker) -> None:
    deliver(fake, c(1, end=True))
    with fake.connect() as connection:
        reader = connection.units("D", group="g")
        components, fake.records[0] = fake.records[0], consumed(topic="elsewhere")
        handle = references.References(INPUT, fake_consumer(fake), lambda: fake.now)
        reader._interpret._handling = replace(reader._interpret._handling, references=handle)  # type: ignore[attr-defined]
        with pytest.raises(errors.ReconnectTimeoutError, match="was not read within 30 s"):
            next(reader)
        fake.records[0] = components
        assert next(reader).delivery_count == 1


def test_what_the_broker_refuses_is_told_w117(fake: FakeBroker) -> None:
    deliver(fake, c(1, end=True))
    component = story(c(1, end=True), shape=Shape.REFERENCE).units[0].components
    fake.read_errors = [KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    found = references.References(INPUT, fake_consumer(fake))
    with pytest.raises(errors.ReconnectGivenUpError):
        list(found.fetch(component))
    assert [each.value for each in found.fetch(component)] == [b"value b'1'"]
    found.close()
    assert fake.consumers[0].closed


def test_a_component_behind_the_end_of_its_topic_is_gone_w117(fake: FakeBroker) -> None:
    """The topic was made anew."""
    components = story(c(1, end=True), shape=Shape.REFERENCE).units[0].components
    found = references.References(INPUT, lambda logger: fake.consumer({**references.END_EVENTS}, logger))
    with pytest.raises(errors.DecodeError, match="is not there any more"):
        list(found.fetch(components))


def fake_consumer(fake: FakeBroker) -> Callable[[logging.Logger], ConsumerHandle]:
    """Makes a consumer that is not told where a partition ends."""
    return lambda logger: fake.consumer({}, logger)
