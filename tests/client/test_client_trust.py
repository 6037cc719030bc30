"""A destination that forms no units has none, whatever headers say: readers go by what its workers recorded (W-65)."""

from __future__ import annotations

import pytest
from fake_handles import FakeBroker, consumed

import uow
from tests.core.script import Step, c, story
from uow.client.failure_policies import (
    UNKNOWN,
    Policies,
    RecordedPolicies,
    _policies_of,
)
from uow.schemas.records import SettingsRow
from uow.topics.policies import ExpirationPolicy, Shape

UNITS = "D.units"
NONE_FORMED = Policies(ExpirationPolicy.REDIRECT, -1, forms_units=False)


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 1}
    return fake


def lie(fake: FakeBroker, *steps: Step, shape: Shape) -> None:
    """What looks like units lies in the topic, as somebody sent it."""
    outputs = [output for output in story(*steps, shape=shape).outputs if output.topic == UNITS]
    fake.records = [
        consumed(output.value, key=output.key, headers=output.headers, topic=UNITS, offset=offset)
        for offset, output in enumerate(outputs)
    ]


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.CONSECUTIVE])
@pytest.mark.parametrize("group", ["g", None])
def test_nothing_is_handed_out_as_a_unit_where_none_is_formed_w65(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch, shape: Shape, group: str | None
) -> None:
    lie(fake, c(1), c(2, end=True), shape=shape)
    monkeypatch.setattr(RecordedPolicies, "ask", lambda self: NONE_FORMED)
    assert connection.units("D", group, start="earliest").receive(0) is None
    assert connection.stream("D", group, start="earliest").receive(0) is None
    fake.committed.clear()
    everything = connection.units("D", group, start="earliest", include_plain=True)
    found = [everything.receive(0) for _ in fake.records]
    assert [type(each) for each in found] == [uow.Message] * len(fake.records)
    first = found[0]
    assert isinstance(first, uow.Message)
    assert first.headers == fake.records[0].headers()
    assert (first.unit is not None) == (shape is Shape.ENVELOPE)


def test_what_a_destination_forms_is_recorded_unless_it_is_the_default() -> None:
    assert not _policies_of(SettingsRow(())).forms_units
    assert _policies_of(SettingsRow((("handling_policy", "single_message_delivery"),))).forms_units
    assert UNKNOWN.forms_units
