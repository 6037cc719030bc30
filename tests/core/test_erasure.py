"""Erasure: one component's payload goes from an open group, and the unit says so (B-216)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.core.rule_script import r, row, told_by
from tests.core.script import Story, c, clock, context_of, given_up, play, policy_of, refused, story, told, unit
from tests.engine.restored_logs import Logs
from tests.engine.test_commands_restored import play as play_to
from tests.engine.test_replay import WIDE, groups_of, restored
from tests.fake_record import INPUT
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.task import PartitionTask
from uow.schemas.digest import UnitDigest
from uow.schemas.error_classes import DecodeError
from uow.topics.policies import AliasFamily, ExpirationPolicy, Oversize, Shape, ValueFormat

SECRET = "the name of somebody"
HELD = c(1), c(2, value=SECRET, user=[("name", SECRET)], component_id="c-2", priority=7), c(3)
ERASED = told("erase", seq=2, command_id="e", at=1)


def payloads(played: Story) -> list[tuple[bytes | None, list[str]]]:
    """Of each component of the one unit its value, and the names of its headers."""
    (made,) = played.units
    return [(each.value, [name for name, _ in each.headers]) for each in made.components]


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.CONSECUTIVE])
@pytest.mark.parametrize("value_format", ValueFormat)
def test_the_unit_says_which_number_was_erased_and_nothing_of_it_is_written_b216(
    shape: Shape, value_format: ValueFormat
) -> None:
    played = story(*HELD, ERASED, c(4, end=True), shape=shape, value_format=value_format)
    assert played.seen == [unit(1, 2, 3, 4)]
    assert {said["uow-erased"] for said in played.unit_headers} == {b"2"}
    written = [*played.outputs, *[part for plan in played.plans[1:] for part in plan.changelog]]
    assert SECRET not in repr(written)
    if shape is Shape.ENVELOPE:
        own = ["uow-id", "uow-seq", "uow-component-id", "uow-priority", "uow-erased"]
        assert payloads(played)[1] == (None, own)
        assert payloads(played)[0] == (b"value b'1'", ["uow-id", "uow-seq"])


def test_what_is_given_up_has_lost_the_payload_too_b216() -> None:
    policy = {"incomplete_expiration_ms": 10_000, "expiration_policy": ExpirationPolicy.REDIRECT}
    played = story(*HELD, ERASED, clock(11), **policy)
    assert played.seen == [given_up(number, "expired", "age", "4-") for number in (1, 2, 3)]
    (gone,) = [output for output in played.outputs if dict(output.headers).get("uow-seq") == b"2"]
    assert (gone.value, dict(gone.headers)["uow-origin-erased"]) == (None, b"e")
    assert SECRET not in repr(played.outputs)


def test_the_end_component_may_be_erased_and_the_unit_has_the_same_id_b216() -> None:
    script = c(1), c(3, end=True, value=SECRET, user=[("name", SECRET)])
    plain, erased = story(*script, c(2)), story(*script, told("erase", seq=3), c(2))
    assert erased.units[0].unit_id == plain.units[0].unit_id
    assert "name" not in erased.unit_headers[0]


def test_marks_of_an_erased_component_still_count_b216() -> None:
    script = c(1, count=3, expires_at=50, deliver_at=20, user=[("name", SECRET)]), c(2), told("erase", seq=1, at=1)
    assert play(*script, c(3), clock(19)) == []
    assert play(*script, c(3), clock(20)) == [unit(1, 2, 3)]
    assert play(*script, told("remove", seq=2), c(2), c(3), clock(20))[1:] == [unit(1, 2, 3)]
    assert play(c(1, expires_at=50), told("erase", seq=1), clock(50.001)) == []


def test_an_erased_number_stays_held_b216() -> None:
    again = c(2, value="new")
    played = story(*HELD, ERASED, again)
    assert [seen.error for seen in played.seen] == ["DuplicateSequenceNumberError"]
    assert played.open == {"a": "1-3"}
    twice = story(*HELD, ERASED, told("erase", seq=2, command_id="again"))
    assert [(answer.done, answer.text) for answer in twice.answers] == [
        (True, "erases the payload of number 2"),
        (False, "number 2 is erased already"),
    ]


def test_a_digest_is_not_asked_for_what_was_erased_b216() -> None:
    digest = UnitDigest()
    for value in (b"one", b"two"):
        digest.add(value)
    script = c(1, value="one"), c(2, end=True, value="two", digest=digest.header().decode())
    assert play(*script) == [unit(1, 2)]
    late = c(1, value="one"), told("erase", seq=1), script[1]
    assert play(*late) == [unit(1, 2)]


def test_nobody_but_a_worker_says_that_a_component_was_erased_b216() -> None:
    """Else a null value with this header would make a unit pass that does not agree with its digest."""
    forged = c(1, erased="2")
    assert play(forged, c(1, end=True)) == [refused(forged, DecodeError, "uow-erased"), unit(1)]


@pytest.mark.parametrize("settings", [{"shape": Shape.REFERENCE}, {"oversize": Oversize.REFERENCE}], ids=str)
def test_where_units_refer_to_the_input_a_component_cannot_be_erased_b216(settings: dict[str, Any]) -> None:
    (answer,) = story(*HELD, ERASED, **settings).answers
    assert (answer.done, "where the payload stays" in answer.text) == (False, True)


def test_a_group_by_rule_loses_a_payload_unless_its_rule_reads_it_b216() -> None:
    erase = told("erase", id="low-stock/UK", seq=1)
    plain = row(complete_count=2, value_format=ValueFormat.JSON)
    played = told_by(r(at=0, value=SECRET, origin_key=SECRET), erase, r(), rules=[plain])
    assert [said["uow-erased"] for said in played.unit_headers] == [b"1"]
    assert SECRET not in repr(played.outputs)
    document = row(complete_count=2, value_format=ValueFormat.XML)
    (answer,) = told_by(r(at=0), erase, rules=[document]).answers
    assert (answer.done, "its rule reads values" in answer.text) == (False, True)


@pytest.mark.parametrize("limits", [ReplayLimits(), WIDE], ids=["promoted at once", "replayable"])
@pytest.mark.parametrize("compacts", [False, True])
def test_the_changelog_forgets_the_payload_and_a_restart_has_the_same_group_b216(
    limits: ReplayLimits, compacts: bool
) -> None:
    policy, logs = policy_of(accept_aliases=frozenset({AliasFamily.JMS})), Logs(INPUT)
    task = PartitionTask(INPUT, context_of(policy, replay=limits))
    play_to(logs, task, [*HELD, c(5, expires_at=100, JMSType="t")], ERASED, [c(6)])
    if compacts:
        logs.compact()
        assert SECRET.encode() not in b"".join(
            each.value_ or b"" for each in logs.written if each.tp.topic.endswith("changelog")
        )
    after = restored(logs, policy, limits)
    assert groups_of(after) == groups_of(task)
    assert after.rows == task.rows
    done = Story(after, offset=after.position)
    assert done.send(c(4), c(7, end=True)) == [unit(1, 2, 3, 4, 5, 6, 7)]
    assert [said["uow-erased"] for said in done.unit_headers] == [b"2"]
    assert after.rows == 0


def test_payloads_are_in_no_log_line_no_outcome_and_no_answer_b216(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    policy: dict[str, Any] = {"incomplete_expiration_ms": 10_000, "expiration_policy": ExpirationPolicy.LOG}
    bad = c(2, value=SECRET, user=[("name", SECRET)])
    played = story(*HELD, bad, ERASED, told("cancel", id="nobody"), clock(11), **policy, warn_at_percent=50)
    told_of = [output for output in played.outputs if output.topic == "D.outcomes"]
    assert len(told_of) == 5, "two answers, an outcome of each, a warning"
    assert SECRET not in repr(told_of) + repr(played.log_lines) + caplog.text
    assert len(played.log_lines) == 3
    assert played.units == []
