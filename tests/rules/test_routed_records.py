"""Records routed many at a time: the same results as one by one, whatever stands among them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.fake_record import FakeRecord
from tests.rules.test_routing import FIXTURE, LOW_STOCK, STOCK, T0, router
from uow.processor.rules.routed_records import KINDS_KEPT, ManyRecords, RoutedRecords
from uow.processor.rules.routing import RecordRouting
from uow.topics.policies import ValueFormat
from uow.topics.record_size import INPUT_LIMIT_BYTES
from uow.topics.rules import DefaultGroup, OnNoKey

PLACE = b"stock.events/2/"
NAMES = (b"France", b"UK", b"Spain", b"Mars", b"", None, b"\xff\xfe", b"n" * 129, b"France ")
OTHERS = (
    ("trace", b"1"),
    ("trace", None),
    ("uow-input", b"forged"),
    ("uow-id", b"mine"),
    ("uow-destination", b"UK"),
    ("h" * 300, b"long"),
    ("big", b"v" * 200_000),
)
PER_NAME = replace(LOW_STOCK, default_group=DefaultGroup.PER_NAME)
XML = {
    name: replace(row, value_format=ValueFormat.XML if name == "UK" else None, valid_from_ms=None)
    for name, row in FIXTURE.items()
}
PLANNED = {name: replace(row, valid_from_ms=T0 + 3 if name == "UK" else None) for name, row in FIXTURE.items()}
VALUES = (b"{}", b"<Test/>", b"<Test>", None, b"v" * INPUT_LIMIT_BYTES, b"v" * 140_000)


class SenderTimed(FakeRecord):
    """Of a topic without append times."""

    def timestamp(self) -> tuple[int, int]:
        return 1, self.at


def records(rng: random.Random, count: int) -> list[FakeRecord]:
    """Plain records, and every kind of odd one among them."""
    found = []
    for offset in range(count):
        name = rng.choice(NAMES[:3]) if rng.random() < 0.7 else rng.choice(NAMES)
        headers: Any = [("uow-destination", name)] if rng.random() < 0.95 else []
        if rng.random() < 0.3:
            headers.insert(rng.randint(0, len(headers)), rng.choice(OTHERS))
        kind = FakeRecord if rng.random() < 0.9 else SenderTimed
        key = rng.choice((b"own key", None, b"low-stock/UK", b"k" * 70_000))
        found.append(kind(offset, headers or None, rng.choice(VALUES), key, T0 + offset % 7, STOCK))
    return found


@pytest.mark.parametrize(
    "routing",
    [
        pytest.param(lambda: router(), id="plain"),
        pytest.param(lambda: router(PER_NAME), id="per name"),
        pytest.param(lambda: router(rows=XML), id="xml for one"),
        pytest.param(lambda: router(rows=PLANNED), id="planned"),
        pytest.param(lambda: router(replace(LOW_STOCK, on_no_key=OnNoKey.REJECT)), id="no name is refused"),
        pytest.param(lambda: router(replace(LOW_STOCK, accept="header('trace') == '1'")), id="accept"),
        pytest.param(lambda: router(replace(LOW_STOCK, group_key="path:product")), id="by path"),
    ],
)
def test_many_at_a_time_are_routed_as_one_by_one(routing: Any) -> None:
    alone, many, found = routing(), ManyRecords(routing()), RoutedRecords()
    given = records(random.Random(7), 600)
    expected = RoutedRecords()
    for record in given:
        expected.add(alone.route(record, record.headers_, T0 + 5))
    for begin in range(0, len(given), 50):
        some = given[begin : begin + 50]
        many.route([(record.headers_, record) for record in some], PLACE, T0 + 5, lambda record: True, found)
    assert found == expected


def test_plain_records_take_the_short_way_and_teaching_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many, alone = ManyRecords(router(PER_NAME)), []
    once = RecordRouting.route
    monkeypatch.setattr(RecordRouting, "route", lambda *given: alone.append(given) or once(*given))
    plain = [FakeRecord(offset, [("uow-destination", b"UK")], b"{}", tp=STOCK) for offset in range(100)]
    many.route([(record.headers_, record) for record in plain], PLACE, T0, lambda record: True, RoutedRecords())
    assert len(alone) == 1
    odd = [
        FakeRecord(offset, [(f"h{offset}", b""), ("uow-destination", b"%d" % offset)], b"{}", tp=STOCK)
        for offset in range(20_000)
    ]
    many.route([(record.headers_, record) for record in odd], PLACE, T0, lambda record: True, RoutedRecords())
    assert len(many._places) <= KINDS_KEPT
    assert len(many._choices) <= 10_000
