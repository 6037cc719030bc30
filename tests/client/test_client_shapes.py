"""The same stream under every shape and every `oversize` gives readers equal units, nested ones included (W-94, W-95, W-206, W-208)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fake_handles import FakeBroker
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from test_client_references import INPUT, deliver
from test_client_runs import UNITS

import uow
from tests.core.script import Sent, c, plain, story
from tests.schemas.wire_strategies import optional_bytes
from uow.schemas import codec
from uow.schemas.records import ComponentRecord, Unit
from uow.topics.policies import (
    AliasFamily,
    ExpirationPolicy,
    Oversize,
    Shape,
)
from uow.topics.runs import position_of

PAD = b"x" * 15_000
LIMIT = 40_000
"""Takes each component, and no envelope of three."""
WRITTEN: dict[str, dict[str, Any]] = {
    "consecutive": {"shape": Shape.CONSECUTIVE},
    "reference": {"shape": Shape.REFERENCE},
    "oversize consecutive": {"oversize": Oversize.CONSECUTIVE, "record_limit_bytes": LIMIT},
    "oversize reference": {"oversize": Oversize.REFERENCE, "record_limit_bytes": LIMIT},
}
JMS = frozenset({AliasFamily.JMS})
INNER = codec.frame(story(c(1, id="parcel"), c(2, id="parcel", end=True)).units[0])
PLAIN_NAMES = [
    "uow-id",
    "uow-reply-to",
    "uow-correlation-id",
    "uow-hops",
    "uow-inner-id",
    "uow-type",
    "uow-user-id",
    "uow-component-id",
    "uow-origin-ts",
    "uow-delivery-mode",
    "uow-parent-id",
    "uow-parent-seq",
    "uow-parent-end",
    "uow-parent-count",
    "uow-source",
    "uow-error-text",
    "uoo-other",
    "trace",
    "colour",
    "JMSXUserID",
    "JMSReplyTo",
    "JMSCorrelationID",
    "JMSMessageID",
    "mq-group-id",
]
CLAIMED_NAMES = [
    "uow-own-",
    "uow-own-x",
    "uow-own-uow-own-x",
    "uow-own-trace",
    "uow-component-at",
    "uow-component-key",
    "uow-component-seq",
    "uow-component-end",
    "uow-opened-at",
    "uow-closed-at",
    "uow-bytes",
    "uow-kind",
    "uow-unit-id",
    "uow-pos",
    "uow-size",
    "uow-missing",
    "uow-outcome",
    "uow-origin-kind",
    "uow-origin-own-x",
    "UOW-KIND",
]
names = st.sampled_from(["", *PLAIN_NAMES, *CLAIMED_NAMES]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
)
values = optional_bytes | st.sampled_from([b"a", b"unit", b"1/1", b"true", b"1"])


@dataclass(frozen=True)
class Read:
    """What a reader is given of one unit."""

    record: Unit
    headers: list[tuple[str, bytes | None]]
    components: list[ComponentRecord]
    inner: list[Unit | None]


def read(*steps: Any, **written: Any) -> list[Read]:
    fake = FakeBroker()
    fake.topics = {UNITS: 1, INPUT: 1}
    deliver(fake, *steps, **written)
    with fake.connect() as connection:
        reader = connection.units("D", group="g")
        found: list[Read] = []
        while (unit := reader.receive(0)) is not None:
            found.append(of(unit))
        return found


def of(unit: uow.ReceivedUnit) -> Read:
    inner = [each.unit.record if each.value == INNER and each.unit is not None else None for each in unit.components]
    return Read(unit.record, [*unit.headers], [each.record for each in unit.components], inner)


def lies_in_records(*steps: Any, **written: Any) -> bool:
    """Whether the units are runs."""
    outputs = story(*steps, **written).outputs
    return any(output.topic == UNITS and position_of(output.headers) is not None for output in outputs)


components = st.tuples(
    st.lists(st.tuples(names, values), max_size=6),
    st.sampled_from(["large", "null"]),
    st.sampled_from([b"a", b"own key", b"", None]),
    st.none() | st.sampled_from("0479"),
    st.integers(0, 5),
)


VALUES = {"large": PAD, "null": None, "inner": INNER}
"""By name, so that what Hypothesis tells stays readable."""


def sent(seq: int, given: tuple[Any, ...], **marks: Any) -> Sent:
    headers, value, key, priority, at = given
    headers = [(name, b"a" if name == "uow-id" else value) for name, value in headers]
    if priority is not None:
        marks["priority"] = priority
    made = c(seq, user=headers, at=float(at), **marks)
    return Sent(made.headers, VALUES[value], key, made.at)


NESTED = ([("uow-inner-id", b"parcel"), ("uow-reply-to", b"answers")], "inner", None, "9", 1)
HOSTILE = (
    [("uow-own-x", b"1"), ("uow-own-x", None), ("trace", b"\x00\xff"), ("uow-kind", b"unit")],
    "large",
    b"own",
    "1",
    0,
)


@pytest.mark.parametrize("how", WRITTEN)
@settings(max_examples=60)
@example(first=HOSTILE, second=NESTED, last=NESTED)
@given(first=components, second=components, last=components)
def test_a_reader_cannot_tell_in_which_shape_a_unit_was_written_w95_w208(
    how: str, first: tuple[Any, ...], second: tuple[Any, ...], last: tuple[Any, ...]
) -> None:
    """W-94, W-206: every header of every component, in its order, whatever its name begins with."""
    steps = [sent(2, second), sent(3, last, end=True, expires_at=10**9), sent(1, first)]
    envelopes = read(*steps, accept_aliases=JMS, shape=Shape.ENVELOPE)
    assume(envelopes)
    assert read(*steps, accept_aliases=JMS, **WRITTEN[how]) == envelopes


@pytest.mark.parametrize("how", WRITTEN)
def test_a_partial_unit_is_the_same_in_every_shape_w207(how: str) -> None:
    partial: dict[str, Any] = {
        "incomplete_expiration_ms": 10_000,
        "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL,
        "accept_aliases": JMS,
    }
    steps = [*(sent(seq, HOSTILE) for seq in range(1, 601, 2)), plain(at=11)]
    written = {**WRITTEN[how], "record_limit_bytes": 10**7} if how == "reference" else WRITTEN[how]
    (envelope,) = read(*steps, shape=Shape.ENVELOPE, **partial)
    (found,) = read(*steps, **written, **partial)
    assert len(envelope.record.missing) == 300
    assert found == envelope


@pytest.mark.parametrize("how", ["consecutive", "oversize consecutive"])
def test_the_examples_are_runs(how: str) -> None:
    steps = [sent(1, HOSTILE), sent(2, HOSTILE), sent(3, HOSTILE, end=True)]
    assert lies_in_records(*steps, **WRITTEN[how])
