"""Records of `D.registry`: written and read back, and every record that somebody else may have put there."""

from __future__ import annotations

import json

import pytest

from uow.schemas.error_classes import DecodeError
from uow.topics.policies import DestinationPolicy, StrictAttach
from uow.topics.strict_registry import ROOM, Era, EraTopic, OrderGap, StrictRegistry, StrictRules, Subscription

RULES = StrictRules(strict_attach=StrictAttach.FAIL, strict_group="g/1", strict_priority=7)
ERA = Era(3, {"d.units": EraTopic("id-1", (0, 17))}, 1_000, "why", "who")
SUBSCRIPTION = Subscription("a/b", "d.units", 1, 3, "who", 2_000)
GAP = OrderGap("a/b", "d.units", 1, 5, 9, "poison", "who", 3_000)


def test_entries_read_back_as_they_were_and_a_null_value_takes_each_away() -> None:
    registry = StrictRegistry("d")
    for entry in (RULES, ERA, SUBSCRIPTION, GAP):
        registry.apply(entry.key(), entry.value())
    assert (registry.rules, registry.era, registry.is_strict) == (RULES, ERA, True)
    assert registry.subscriptions == {("a/b", "d.units", 1): SUBSCRIPTION}
    assert [*registry.gaps.values()] == [GAP]
    for entry in (RULES, ERA, SUBSCRIPTION, GAP):
        registry.apply(entry.key(), None)
    assert registry == StrictRegistry("d")


def test_the_rules_of_a_destination_are_its_settings() -> None:
    assert StrictRules.of(DestinationPolicy(strict_order=True, strict_priority=9)).strict_priority == 9
    registry = StrictRegistry("d")
    registry.apply(b"strict", StrictRules.of(DestinationPolicy()).value())
    assert not registry.is_strict


def test_kinds_of_a_later_version_are_passed_over() -> None:
    registry = StrictRegistry("d")
    for key in (None, b"", b"\xff", b"lease/query", b"strictly"):
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
