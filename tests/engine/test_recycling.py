"""Components without a group: a restore sets them aside, and a command brings them back (aggregation, B-72 to B-74)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, sizes
from tests.core.script import TOPICS, Story, Told, clock, ms, text
from tests.engine.restored_logs import Logs
from tests.engine.test_by_rule_restored import new_task, restored, write
from tests.fake_record import INPUT
from uow.processor.engine.ports import Tp
from uow.processor.engine.rows import read_ledger
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import rule_changelog_key

UK = row(complete_count=9, age_ms=60_000)
CHANGELOG = Tp(TOPICS.groups_changelog, INPUT.partition)


def recycled(
    offset: int,
    at: float,
    id: str = "low-stock/UK",
    command_id: str = "",
    dry_run: bool = False,
    partition: int = INPUT.partition,
) -> Told:
    said: list[tuple[str, object]] = [
        ("uow-command", "recycle"),
        ("uow-command-id", command_id or f"recycle {offset} {at}"),
        ("uow-id", id),
        ("uow-source", f"{INPUT.topic}/{partition}/{offset}"),
        ("uow-why", "found by the audit"),
        ("uow-dry-run", True if dry_run else None),
    ]
    return Told([(name, text(value)) for name, value in said if value is not None], id.encode(), at)


def plant(logs: Logs, sent: Any, generation: int = 3, key: bytes = b"low-stock/UK") -> None:
    """The row of a component, without that of its group; it was at offset 0 of the input."""
    lone = Story(new_task(table=Table(UK)))
    lone.send(sent)
    component, _ = lone.plans[0].changelog
    logs.append(CHANGELOG, rule_changelog_key(key, generation, 1), component[1])


def after(logs: Logs, table: Table | None = None) -> Story:
    return Story(restored(logs, table=table or Table(UK)), offset=10)


def keep(logs: Logs, played: Story) -> None:
    for plan in played.plans:
        logs.add(plan)
    played.plans.clear()


def test_a_component_without_a_group_is_set_aside_and_joins_the_open_group_of_its_key_b72() -> None:
    logs, _ = write(r(at=0), r(at=1), rows=[UK])
    plant(logs, r(at=-5, value="<lost/>"))
    played = after(logs)
    assert (played.task.orphans, played.open) == (1, {"low-stock/UK": "1-2"}), "it is in no group, and the rest goes on"
    assert played.task.memory_bytes > new_task().memory_bytes
    played.send(recycled(0, at=2, dry_run=True), recycled(77, at=2), recycled(0, at=3), r(at=4))
    assert played.open == {"low-stock/UK": "1-4"}
    assert [(each.done, each.text.partition(" of this")[0]) for each in played.answers] == [
        (False, "dry run, nothing is changed: gives it to the open group of its id, or opens the next one"),
        (False, f"no component {INPUT.topic}/0/77"),
        (True, "takes it as number 3 of generation 1"),
    ]
    keep(logs, played)
    again = after(logs)
    assert (again.task.orphans, again.open) == (0, {"low-stock/UK": "1-4"}), "its row has moved, in one transaction"
    again.send(clock(300))
    (unit,) = again.units
    assert [dict(each.headers).get("uow-recycled") for each in unit.components] == [None, None, b"1", None]
    assert [each.value for each in unit.components][2] == b"<lost/>"


def test_a_recycled_component_keeps_its_arrival_and_closes_the_group_at_once_when_its_time_is_over_b73() -> None:
    logs, _ = write(r(at=300), r(at=310), rows=[UK])
    plant(logs, r(at=20, arrived=10))
    played = after(logs)
    played.send(recycled(0, at=311))
    assert sizes(played) == [("partial", "age", 3)]
    (unit,) = played.units
    assert unit.closed_at == ms(70.001), "the deadline is that of its own arrival"
    assert played.answers[0].text.endswith("whose time is over: it closes with 3 components")
    assert played.outcomes[0].closed_at == ms(311), "as of its deadline, decided when the command came"
    played.send(r(at=312))
    assert played.open == {"low-stock/UK": "1"}
    assert [group.generation for group in played.task.groups.values()] == [2]


def test_without_an_open_group_it_opens_the_next_generation_and_no_row_is_taken_over_meanwhile_b72() -> None:
    logs, _ = write(r("France", at=0), rows=[UK, row("France", complete_count=9)])
    plant(logs, r(at=1, value="<lost/>"), generation=1)
    table = Table(UK, row("France", complete_count=9))
    played = after(logs, table)
    played.send(r(at=2))
    assert [group.generation for group in played.task.groups.values() if group.id.endswith(b"UK")] == [2]
    keep(logs, played)
    played = after(logs, table)
    assert played.task.orphans == 1, "the row of the other generation has not replaced it"
    played.send(recycled(0, at=3))
    keep(logs, played)
    assert after(logs, table).open == {"low-stock/UK": "1-2", "low-stock/France": "1"}


def test_recycling_twice_with_a_crash_between_holds_it_once_b74() -> None:
    logs, _ = write(r(at=0), rows=[UK])
    plant(logs, r(at=1))
    crashed = after(logs)
    crashed.send(recycled(0, at=2, command_id="again"))
    played = after(logs)
    assert played.task.orphans == 1, "nothing was committed"
    played.send(recycled(0, at=2, command_id="again"), recycled(0, at=3, command_id="again"), recycled(0, at=4))
    assert played.open == {"low-stock/UK": "1-2"}
    assert [each.done for each in played.answers] == [True, False, False]
    keep(logs, played)
    assert (after(logs).task.orphans, after(logs).open) == (0, {"low-stock/UK": "1-2"})


def test_one_that_its_group_has_already_is_refused_and_is_without_a_group_no_longer_b74() -> None:
    one = r(at=1, input="stock.events/0/9")
    logs, _ = write(one, rows=[UK])
    plant(logs, one)
    played = after(logs)
    played.send(recycled(0, at=2))
    assert played.open == {"low-stock/UK": "1"}
    (refused,) = [dict(each.headers) for each in played.outputs if each.topic == TOPICS.rejected]
    assert (refused["uow-error-class"], refused["uow-error-case"]) == (b"DuplicateSequenceNumberError", b"resend")
    told = [read_ledger(plan.ledger or b"")[0] for plan in played.plans]
    assert [each.not_held for each in told] == [()], "of an offset that lies behind it the ledger says nothing"
    keep(logs, played)
    again = after(logs)
    assert (again.task.orphans, again.open) == (0, {"low-stock/UK": "1"})


def test_what_cannot_be_recycled_says_why_and_stays() -> None:
    logs, _ = write(r(at=0), rows=[UK])
    plant(logs, r(at=1), key=b"somebody/else")
    plant(logs, r("UK", at=1), generation=9)
    played = after(logs)
    played.send(recycled(0, at=2, id="somebody/else"))
    played.task.context.rules.policies.clear()  # type: ignore[attr-defined]
    played.send(recycled(0, at=3))
    assert [each.text for each in played.answers] == [
        "its headers do not say that it is a component by rule of this id",
        "the row low-stock/UK@1 is not in the rules",
    ]
    assert played.task.orphans == 2


def test_a_row_that_is_none_under_such_a_key_is_told_and_not_guessed() -> None:
    logs, _ = write(r(at=0), rows=[UK])
    logs.append(CHANGELOG, rule_changelog_key(b"low-stock/UK", 5, 1), b"rubbish")
    with pytest.raises(StateCorruptedError, match="no component row of a known version"):
        restored(logs, table=Table(UK))
