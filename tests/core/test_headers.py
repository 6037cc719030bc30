"""Headers as they come: alias families (W-17), user headers, and bytes that nobody would send (W-23)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.script import Sent, bare, c, passed, play, refused, story, unit
from uow.processor.core.columns import Caps
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    BadUnitIdError,
    DecodeError,
    UnitConflictError,
)
from uow.topics.headers import (
    ALIASES,
    Marks,
    Reading,
    Refusal,
    decimal,
)
from uow.topics.policies import AliasFamily


def aliased(family: AliasFamily, seq: int, end: bool, id: str = "a") -> list[tuple[str, bytes | None]]:
    """A component as the family's system writes it."""
    number, name = b"%d" % seq, id.encode()
    match family:
        case AliasFamily.WEBLOGIC:
            return [
                ("JMS_BEA_UnitOfWork", name),
                ("JMS_BEA_UnitOfWorkSequenceNumber", number),
                ("JMS_BEA_IsUnitOfWorkEnd", b"true" if end else b"false"),
            ]
        case AliasFamily.JMS:
            last = [("JMS_IBM_Last_Msg_In_Group", b"TRUE")] if end else []
            return [("JMSXGroupID", name), ("JMSXGroupSeq", number), *last]
        case AliasFamily.MQ:
            flags = b"%d" % (0x18 if end else 0x08)
            return [("mq-group-id", name), ("mq-msg-seq-number", number), ("mq-msg-flags", flags)]
        case AliasFamily.SPRING:
            return [("correlationId", name), ("sequenceNumber", number), ("sequenceSize", b"3")]
        case AliasFamily.NIFI:
            return [("fragment.identifier", name), ("fragment.index", b"%d" % (seq - 1)), ("fragment.count", b"3")]
        case AliasFamily.NIFI_FROM_1:
            return [("fragment.identifier", name), ("fragment.index", number), ("fragment.count", b"3")]
        case AliasFamily.CAMEL:
            raise AssertionError("it has no names of its own")


NAMED = [family for family in AliasFamily if ALIASES[family]]


@pytest.mark.parametrize("family", NAMED)
def test_alias_headers_alone_give_the_same_group_as_native_ones_w17(family: AliasFamily) -> None:
    script = [bare(aliased(family, number, number == 3), b"v") for number in (1, 3, 2)]
    assert play(*script, accept_aliases=frozenset({family})) == [unit(1, 2, 3)]


@pytest.mark.parametrize("family", NAMED)
def test_family_that_is_not_listed_is_plain_w17(family: AliasFamily) -> None:
    others = frozenset(each for each in AliasFamily if ALIASES[each] is not ALIASES[family])
    for accepted in (frozenset(), others):
        assert play(bare(aliased(family, 1, True), b"v"), accept_aliases=accepted) == [passed("v")]


@pytest.mark.parametrize("family", NAMED)
def test_alias_and_native_header_with_equal_values_count_as_one_w17(family: AliasFamily) -> None:
    native = [("uow-id", b"a"), ("uow-seq", b"1"), ("uow-end", b"true"), ("uow-count", b"1")]
    alias = [pair for pair in aliased(family, 1, True) if ALIASES[family][pair[0]] != "uow-count"]
    assert play(bare(native + alias), accept_aliases=frozenset({family})) == [unit(1)]


@pytest.mark.parametrize("family", NAMED)
def test_alias_with_another_id_is_refused_w17(family: AliasFamily) -> None:
    record = bare([*c(1, id="a").headers, *aliased(family, 1, True, id="b")])
    assert play(record, accept_aliases=frozenset({family})) == [refused(record, BadUnitIdError, "alias")]


@pytest.mark.parametrize("family", NAMED)
def test_alias_with_another_number_is_refused_w17(family: AliasFamily) -> None:
    record = bare([*c(2).headers, *aliased(family, 1, False)])
    assert play(record, accept_aliases=frozenset({family})) == [refused(record, BadSequenceNumberError, "malformed")]


@pytest.mark.parametrize("family", [AliasFamily.WEBLOGIC, AliasFamily.JMS, AliasFamily.MQ])
def test_alias_with_another_end_mark_is_refused_w17(family: AliasFamily) -> None:
    record = bare([*c(1, end="false").headers, *aliased(family, 1, True)])
    assert play(record, accept_aliases=frozenset({family})) == [
        refused(record, BadSequenceNumberError, "malformed-end")
    ]


def test_mq_group_ids_are_hex_in_any_letter_case_w17() -> None:
    pairs = (
        [("mq-group-id", b"AB01"), ("mq-msg-seq-number", b"1")],
        [("mq-group-id", b"ab01"), *aliased(AliasFamily.MQ, 2, True)[1:]],
    )
    assert play(*(bare(headers) for headers in pairs), accept_aliases=frozenset({AliasFamily.MQ})) == [
        unit(1, 2, id="ab01")
    ]


@pytest.mark.parametrize(
    ("family", "headers", "case"),
    [
        (AliasFamily.MQ, [("mq-group-id", b"a"), ("mq-msg-seq-number", b"1"), ("mq-msg-flags", b"x")], "malformed-end"),
        (AliasFamily.NIFI, [("fragment.identifier", b"a"), ("fragment.index", b"-1")], "b"),
        (AliasFamily.NIFI, [("fragment.identifier", b"a"), ("fragment.index", b"x")], "malformed"),
        (AliasFamily.NIFI, [("fragment.identifier", b"a"), ("fragment.index", b"9" * 30)], "malformed"),
    ],
)
def test_alias_value_that_cannot_be_read_is_refused_w17(family: AliasFamily, headers: Any, case: str) -> None:
    assert play(bare(headers), accept_aliases=frozenset({family})) == [
        refused(bare(headers), BadSequenceNumberError, case)
    ]


def test_spring_correlation_id_alone_makes_no_group_w17() -> None:
    spring = frozenset({AliasFamily.SPRING})
    assert play(bare([("correlationId", b"x")], b"v"), accept_aliases=spring) == [passed("v")]
    native = c(1, end=True, user=[("correlationId", "x")])
    assert play(native, accept_aliases=spring) == [unit(1)]
    same = c(1, end=True, user=[("correlationId", "a"), ("correlationId", "a")])
    assert play(same, accept_aliases=spring) == [unit(1)]


def test_weblogic_unit_of_order_conflicts_with_a_unit_of_work_w33_w17() -> None:
    record = c(1, user=[("JMS_BEA_UnitOfOrder", "o")])
    assert play(record, accept_aliases=frozenset({AliasFamily.WEBLOGIC})) == [refused(record, UnitConflictError)]
    assert play(c(1, end=True, user=[("JMS_BEA_UnitOfOrder", "o")])) == [unit(1)]


def test_jms_properties_are_those_of_the_unit_w17_w90_w92() -> None:
    end = bare(
        [
            *aliased(AliasFamily.JMS, 1, True),
            ("JMSMessageID", b"ID:7"),
            ("JMSExpiration", b"4102444800000"),
            ("JMSCorrelationID", b"corr"),
            ("JMSPriority", b"7"),
            ("JMSType", b"order"),
            ("JMSXUserID", b"jill"),
            ("JMSReplyTo", b"queue"),
            ("JMSDeliveryMode", b"2"),
            ("color", b"red"),
        ]
    )
    played = story(end, accept_aliases=frozenset({AliasFamily.JMS}))
    headers = played.unit_headers[0]
    assert {name: headers.get(f"uow-{name}") for name in ("correlation-id", "priority", "type", "user-id")} == {
        "correlation-id": b"corr",
        "priority": b"7",
        "type": b"order",
        "user-id": b"jill",
    }
    assert headers["uow-expires-at"] == b"4102444800000"
    assert headers["uow-delivery-mode"] == b"persistent"
    assert headers["color"] == b"red"
    assert not {name for name in headers if name.startswith("JMS")} | {
        name for name in headers if name == "uow-reply-to"
    }
    assert played.units[0].components[0].component_id == "ID:7"


@pytest.mark.parametrize(("raw", "mode"), [(b"1", b"non_persistent"), (b"PERSISTENT", b"persistent"), (None, None)])
def test_jms_delivery_mode_is_read_as_number_or_word_w93(raw: bytes | None, mode: bytes | None) -> None:
    record = bare([*aliased(AliasFamily.WEBLOGIC, 1, True), ("JMSDeliveryMode", raw)])
    played = story(record, accept_aliases=frozenset({AliasFamily.WEBLOGIC}))
    assert played.unit_headers[0].get("uow-delivery-mode") == mode


def test_order_of_the_setting_plays_no_part_w17() -> None:
    families = [AliasFamily.NIFI, AliasFamily.SPRING, AliasFamily.JMS]
    assert Reading(families).names == Reading(reversed(families)).names


def test_reading_of_no_headers_is_plain_traffic_w02() -> None:
    assert Reading().read(None) is None
    assert Reading().read([]) is None


def test_marks_say_what_the_headers_say() -> None:
    headers = c(3, end=True, count=3, component_id="m", expires_at=1, deliver_at=2, rerouted=1).headers
    marks = Reading().read(headers)
    assert isinstance(marks, Marks)
    assert (marks.id, marks.seq, marks.end, marks.total, marks.component_id) == (b"a", 3, True, 3, b"m")
    assert marks.special
    assert marks.rerouted


def test_component_id_that_is_no_text_decides_nothing_w23_w31() -> None:
    first, second = c(1, value="x", component_id=b"\xff"), c(1, value="y", component_id=b"\xff")
    assert [seen.case for seen in play(first, second)] == ["conflict"]  # type: ignore[union-attr]
    assert story(first).task.groups[b"a"].held


def test_refusal_of_a_long_value_shows_its_beginning_only() -> None:
    refusal = Reading().read([("uow-id", b"a"), ("uow-seq", b"x" * 1_000_000)])
    assert isinstance(refusal, Refusal)
    assert len(refusal.detail) <= 80


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"9" * 19, 10**19 - 1),
        (b"9" * 20, None),
        (b"0" * 50 + b"5", 5),
        (b"", None),
        (b"+1", None),
    ],
)
def test_decimal_is_plain_ascii_of_at_most_nineteen_digits_w27(raw: bytes, number: int | None) -> None:
    assert decimal(raw) == number


def test_user_headers_are_neither_ours_nor_aliases_w90() -> None:
    plain_reading, jms = Reading(), Reading([AliasFamily.JMS])
    assert plain_reading.is_user_header("JMSType")
    assert not jms.is_user_header("JMSType")
    assert not plain_reading.is_user_header("uow-unheard-of")
    assert not plain_reading.is_user_header("uoo-name")
    assert jms.is_user_header("trace")


@pytest.mark.parametrize("layout", range(3))
def test_layout_of_headers_plays_no_part(layout: int) -> None:
    """Whatever reads a layout, the component in the unit is as it was sent (W-95)."""
    headers: Any = [
        [("uow-end", b"true"), ("uow-seq", b"1"), ("uow-id", b"a")],
        [("x", None), ("uow-id", b"a"), ("x", b"\xff"), ("uow-seq", b"1"), ("uow-end", b"True")],
        [("uow-id", b"a"), ("uow-seq", b"01"), ("uow-end", b"tRUE"), ("uow-id", b"a")],
    ][layout]
    record: Sent = bare(headers, None, None)
    assert play(record) == [unit(1)]
    component = story(record).units[0].components[0]
    assert (list(component.headers), component.key, component.value, component.end) == (headers, None, None, True)


@pytest.mark.parametrize("code", [0, 3, 3 | 1 << 8, 255])
def test_a_reading_that_this_version_does_not_know_is_refused(code: int) -> None:
    with pytest.raises(DecodeError, match=f"reading {code} is unknown, this worker's is version 2"):
        Reading.of_code(code)


@pytest.mark.parametrize(
    "headers",
    [
        [("uow-id", b"a"), ("uow-seq", b"1"), ("uow-end", None)],
        [("fragment.identifier", b"a"), ("fragment.index", b"\0\0\0\1")],
        [("mq-group-id", bytes(24)), ("mq-msg-seq-number", b"1")],
        [("correlationId", b"a"), ("sequenceNumber", b"1"), ("sequenceSize", b"0")],
    ],
)
def test_version_1_reads_as_it_did_so_that_a_replay_finds_what_was_held_w119(headers: Any) -> None:
    families = (AliasFamily.MQ, AliasFamily.SPRING, AliasFamily.NIFI)
    first = Reading.of_code(1 | Reading(families).code & ~0xFF)
    assert (first.version, first.families, first.code & 0xFF) == (1, frozenset(families), 1)
    assert first.read(headers) != Reading(families).read(headers)
    plain = [("fragment.identifier", b"a"), ("fragment.index", b"4"), ("mq-msg-flags", b"24"), ("x", None)]
    assert first.read(plain) == Reading(families).read(plain) == Marks(b"a", 5, True, special=False)


def test_a_component_may_have_as_many_headers_and_bytes_of_names_as_is_said() -> None:
    caps = Caps(headers=3, name_bytes=10)
    assert not caps.are_exceeded(["ab", "cd", "üüü"])
    assert caps.are_exceeded(["ab", "cd", "e", "f"])
    assert caps.are_exceeded(["ab", "cde", "üüü"])
