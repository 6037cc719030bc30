"""Records of `D.registry`: written and read back, and every record that somebody else may have put there."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from uow.schemas.error_classes import DecodeError
from uow.topics.policies import (
    DestinationPolicy,
    ExceptionDestination,
    StrictAttach,
    StrictProducers,
    StrictTopology,
)
from uow.topics.strict_order import ONLY_STRICT, STRICT_DEFAULTS
from uow.topics.strict_registry import ROOM, Era, EraTopic, Lease, OrderGap, StrictRegistry, StrictRules, Subscription

RULES = StrictRules(strict_attach=StrictAttach.FAIL, strict_group="g/1", strict_priority=7)
ERA = Era(3, {"d.units": EraTopic("id-1", (0, 17))}, 1_000, "why", "who")
SUBSCRIPTION = Subscription("a/b", "d.units", 1, 3, "who", 2_000)
LEASE = Lease("s3://lake/a", "t-1", 9_000, "who")
GAP = OrderGap("a/b", "d.units", 1, 5, 9, "poison", "who", 3_000)


def test_entries_read_back_as_they_were_and_a_null_value_takes_each_away() -> None:
    registry = StrictRegistry("d")
    for entry in (RULES, ERA, SUBSCRIPTION, GAP, LEASE):
        registry.apply(entry.key(), entry.value())
    assert [*registry.leases.values()] == [LEASE]
    assert (registry.rules, registry.era, registry.is_strict) == (RULES, ERA, True)
    assert registry.subscriptions == {("a/b", "d.units", 1): SUBSCRIPTION}
    assert [*registry.gaps.values()] == [GAP]
    for entry in (RULES, ERA, SUBSCRIPTION, GAP, LEASE):
        registry.apply(entry.key(), None)
    assert registry == StrictRegistry("d")


OTHERS: dict[str, Any] = {
    "strict_attach": StrictAttach.FAIL,
    "strict_group": "g",
    "strict_order_topology": StrictTopology.WARN,
    "strict_producers": StrictProducers.PLAIN,
    "strict_priority": 9,
    "strict_block_limit_ms": 5,
    "exception_destination": ExceptionDestination.ERRORS,
    "redelivery_limit": 7,
    "auto_stop_on_failure": False,
}
"""Another value than the default for each setting of a strict destination that clients follow."""


def test_the_rules_of_a_destination_are_its_settings_each_in_its_place() -> None:
    """As settings, as rules, and as read back; and what no configuration says is the same on both sides."""
    usual = DestinationPolicy(
        strict_order=True, **{name: value for name, value in STRICT_DEFAULTS.items() if name in OTHERS}
    )
    assert StrictRules.of(usual) == StrictRules()
    assert {*OTHERS, "strict_order"} == {each.name for each in fields(StrictRules)}
    assert ONLY_STRICT - {"receive_exclusive"} <= {*OTHERS}  # which has one value there
    rules = StrictRules.of(DestinationPolicy(strict_order=True, **OTHERS))
    assert {name: getattr(rules, name) for name in OTHERS} == OTHERS
    assert all(getattr(rules, name) != getattr(StrictRules(), name) for name in OTHERS)
    read = StrictRegistry("d")
    read.apply(rules.key(), rules.value())
    assert read.rules == rules


def test_a_destination_without_strict_order_is_not_strict() -> None:
    registry = StrictRegistry("d")
    registry.apply(b"strict", StrictRules.of(DestinationPolicy()).value())
    assert not registry.is_strict


def test_kinds_of_a_later_version_are_passed_over() -> None:
    registry = StrictRegistry("d")
    for key in (None, b"", b"\xff", b"permit/query", b"strictly"):
        registry.apply(key, b"{}")
    assert registry.unread == 5
    assert not registry.is_strict


def changed(entry: StrictRules | Era | Subscription | OrderGap, **fields: object) -> tuple[bytes, bytes]:
    return entry.key(), json.dumps({**json.loads(entry.value()), **fields}).encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"strict", b""),
        (b"strict", b"no json"),
        (b"strict", b"\xff"),
        (b"strict", b"[]"),
        (b"strict", b"{}"),
        (b"strict", b"[" * 100_000),
        (b"strict", b" " * (ROOM + 1)),
        (b"strict", b'{"v": ' + b"9" * 5_000 + b"}"),
        changed(RULES, v=2),
        changed(RULES, strict_order="true"),
        changed(RULES, strict_attach="maybe"),
        changed(RULES, strict_priority=2**64),
        changed(ERA, topics=7),
        changed(ERA, topics={"d.units": {"id": "x", "starts": ["a"]}}),
        changed(ERA, number=True),
        changed(SUBSCRIPTION, era="x" * 100),
        (b"subscription/d.units", SUBSCRIPTION.value()),
        (b"subscription/g/d.units/-1", SUBSCRIPTION.value()),
        (b"gap/1", GAP.value()),
    ],
)
def test_what_cannot_be_read_is_told_with_its_kind_and_changes_nothing(key: bytes, value: bytes) -> None:
    registry = StrictRegistry("d")
    with pytest.raises(DecodeError) as told:
        registry.apply(key, value)
    assert told.value.case == key.decode().partition("/")[0]
    assert len(str(told.value)) < 500
    assert registry == StrictRegistry("d")
