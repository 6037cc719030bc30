"""Units by rule as readers get them: JSON as units, XML as the document that its rule made (B-53, B-55)."""

from __future__ import annotations

import pytest
from fake_handles import FakeBroker, consumed
from test_client_references import INPUT, deliver
from test_client_runs import UNITS

import uow
from tests.core.rule_script import Table, r, row
from tests.core.script import T0
from uow.topics.policies import Shape, ValueFormat

XML = row("UK", complete_count=2, value_format=ValueFormat.XML)
JSON = row("France", complete_count=2, value_format=ValueFormat.JSON)
STEPS = [r("UK", at=1), r("UK", at=2, value="text"), r("France", at=3), r("France", at=4)]
DOCUMENT = b'<?xml version="1.0" encoding="UTF-8"?>\n<Aggregation><Test/><Value>text</Value></Aggregation>'


@pytest.fixture
def read(fake: FakeBroker) -> FakeBroker:
    fake.topics = {UNITS: 1, INPUT: 1}
    deliver(fake, *STEPS, rules=Table(XML, JSON), shape=Shape.ENVELOPE)
    return fake


def test_a_unit_by_rule_in_xml_is_a_document_and_one_in_json_a_unit_b53_b55(read: FakeBroker) -> None:
    with read.connect() as connection:
        reader = connection.units("D", group="g")
        document, unit = next(reader), next(reader)
        assert isinstance(document, uow.ReceivedDocument)
        assert (document.value, document.text(), document.components) == (DOCUMENT, DOCUMENT.decode(), ())
        assert (document.id, document.generation, document.outcome, document.reason) == (
            *("low-stock/UK", 1),
            *("complete", "count"),
        )
        told = document.record
        assert (told.destination, told.count, told.opened_at, told.closed_at) == ("D", 2, T0 + 1000, T0 + 2000)
        assert document.unit_id == document.header("uow-unit-id")
        assert document.header("uow-rule") == "low-stock/UK@1"
        document.acknowledge()
        assert (type(unit), [each.text() for each in unit.components]) == (uow.ReceivedUnit, ["<Test/>"] * 2)


def test_a_streaming_reader_hands_out_the_document_b53(read: FakeBroker) -> None:
    with read.connect() as connection:
        streamed = next(connection.stream("D", group="g"))
        assert (streamed.document, [*streamed.components], streamed.size) == (DOCUMENT, [], 2)
        streamed.acknowledge()


@pytest.mark.parametrize("name", ["uow-size", "uow-closed-at", "uow-generation", "uow-unit-id"])
def test_a_document_whose_headers_do_not_tell_its_unit_is_given_up(read: FakeBroker, name: str) -> None:
    right = next(each for each in read.records if each.topic() == UNITS)
    headers = [(key, b"x" if key == name else value) for key, value in right.headers() or ()]
    headers = [pair for pair in headers if name != "uow-unit-id" or pair[0] != name]
    read.records = [consumed(DOCUMENT, headers=headers, topic=UNITS, offset=0)]
    with read.connect() as connection:
        reader = connection.units("D", group=None, start="earliest")
        assert reader.receive(0) is None
        assert reader.given_up.total() == 1
