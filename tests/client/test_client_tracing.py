"""Trace context across hops: one trace per unit, a span per component and hop (W-213)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_handles import FakeBroker, FakeSent, consumed

import uow
from tests.core.script import c, clock, story
from uow.processor.core.group import Group
from uow.topics.policies import ExpirationPolicy, OutcomesPolicy

Spans = list[uow.Span]
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Spans:
    return []


@pytest.fixture
def connection(fake: FakeBroker, spans: Spans) -> Iterator[uow.Connection]:
    with fake.connect(on_span=spans.append) as connection:
        yield connection


def context(sent: FakeSent) -> str:
    [said] = [value for name, value in sent.headers if name == "traceparent"]
    assert isinstance(said, bytes)
    return said.decode()


def hop(fake: FakeBroker, connection: uow.Connection, sent: FakeSent, to: str) -> FakeSent:
    """Reads what was sent, and forwards it."""
    fake.records = [consumed(sent.value, key=sent.key, headers=sent.headers, topic=sent.name)]
    fake.committed.clear()
    message = connection.messages(sent.name, group="g").receive(0)
    assert message is not None
    connection.forward(message, to=to)
    return fake.visible[-1]


def test_two_hops_link_each_span_to_the_one_before_w213(
    fake: FakeBroker, connection: uow.Connection, spans: Spans
) -> None:
    with connection.unit("megazon") as unit:
        unit.send("1", to="gadget-planet")
        unit.send("2")
    first, second = fake.visible[-2:]
    last = hop(fake, connection, hop(fake, connection, first, "widget-world"), "megazon.components")

    begun, straight, packed, handed_on = spans
    assert {span.trace_id for span in spans} == {begun.trace_id}, "one trace per unit"
    assert len({span.span_id for span in spans}) == 4
    assert (begun.parent_id, packed.parent_id, handed_on.parent_id) == (None, begun.span_id, packed.span_id)
    assert straight.parent_id is None
    assert [span.topic for span in spans] == [
        "gadget-planet",
        "megazon.components",
        "widget-world",
        "megazon.components",
    ]
    assert {span.id for span in spans} == {unit.id}
    assert [span.seq for span in spans] == [1, 2, 1, 1]
    assert begun.component_id == handed_on.component_id != straight.component_id
    assert context(last) == f"00-{begun.trace_id}-{handed_on.span_id}-01"
    assert context(second) == f"00-{begun.trace_id}-{straight.span_id}-01"


def test_producers_that_know_nothing_of_each_other_share_the_trace_of_their_unit_w213(
    fake: FakeBroker, connection: uow.Connection, spans: Spans
) -> None:
    connection.send("megazon", "1", id="order-1", seq=1)
    with fake.connect(on_span=spans.append) as other:
        other.send("megazon", "2", id="order-1", seq=2, end=True)
        other.send("megazon", "1", id="order-2", seq=1)
        other.send("megazon", "plain")
    one, two, stranger = spans
    assert one.trace_id == two.trace_id != stranger.trace_id


def test_a_trace_that_is_there_goes_on_and_its_state_travels_w213(
    fake: FakeBroker, connection: uow.Connection, spans: Spans
) -> None:
    theirs = {"traceparent": THEIRS, "tracestate": "vendor=1"}
    with connection.unit("megazon", headers=theirs) as unit:
        unit.send("1")
        unit.send("2", headers={"traceparent": THEIRS.replace("-01", "-02")})
    assert {(span.trace_id, span.parent_id) for span in spans} == {(THEIRS[3:35], THEIRS[36:52])}
    assert [context(sent)[-2:] for sent in fake.visible] == ["01", "00"], "only the flag that is known is kept"
    assert all(("tracestate", b"vendor=1") in sent.headers for sent in fake.visible)


@pytest.mark.parametrize(
    "wrong",
    ["", "nonsense", THEIRS.upper(), "ff" + THEIRS[2:], THEIRS.replace("b7ad6b7169203331", "0" * 16), THEIRS[:-1], f"00-{'0' * 32}-b7ad6b7169203331-01"],
)  # fmt: skip
def test_a_trace_that_cannot_be_read_begins_anew_w213(
    fake: FakeBroker, connection: uow.Connection, spans: Spans, wrong: str
) -> None:
    connection.send("megazon", "1", id="order-1", seq=1, headers={"traceparent": wrong, "tracestate": "vendor=1"})
    [span] = spans
    assert (context(fake.visible[0]), span.parent_id) == (f"00-{span.trace_id}-{span.span_id}-01", None)
    assert "tracestate" not in dict(fake.visible[0].headers)


def test_who_does_not_take_part_passes_the_headers_on_as_they_are_w213(fake: FakeBroker) -> None:
    with fake.connect() as connection:
        connection.send("megazon", "1", id="order-1", seq=1, headers={"traceparent": THEIRS}, to="gadget-planet")
        assert context(hop(fake, connection, fake.visible[-1], "widget-world")) == THEIRS
        connection.send("megazon", "1", id="order-1", seq=1)
    assert "traceparent" not in dict(fake.visible[-1].headers)


def test_plain_traffic_has_no_span_w213(fake: FakeBroker, connection: uow.Connection, spans: Spans) -> None:
    passed_on = hop(fake, connection, FakeSent("t", None, b"v", [("traceparent", THEIRS.encode())]), "next")
    assert (context(passed_on), spans) == (THEIRS, [])


def test_unit_carries_the_trace_of_its_end_component_w213() -> None:
    played = story(c(2, end=True, user=[("traceparent", THEIRS.encode())]), c(1, user=[("traceparent", b"other")]))
    assert played.unit_headers[0]["traceparent"] == THEIRS.encode()


def test_outcome_names_the_component_that_arrived_last_w213() -> None:
    played = story(
        c(3, end=True, component_id="c-3"),
        c(1, component_id="c-1"),
        c(2, component_id="c-2"),
        c(2, id="late", at=1),
        c(1, id="late"),
        clock(99),
        outcomes=OutcomesPolicy.ALL,
        incomplete_expiration_ms=10_000,
        expiration_policy=ExpirationPolicy.REDIRECT,
    )
    named = {outcome.id: outcome.last_arrived for outcome in played.outcomes}
    assert {key: last and (last.seq, last.component_id) for key, last in named.items()} == {
        "a": (2, "c-2"),
        "late": (1, None),
    }


def test_outcome_of_a_group_that_held_nothing_names_no_component_w213() -> None:
    assert Group(b"a", 1, 0).last_arrived() is None
