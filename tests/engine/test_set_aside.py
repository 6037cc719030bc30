"""Records at which the code itself fails: the limit, what the log says, and exceptions that cannot even be shown."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.core.script import context_of, policy_of
from tests.fake_record import INPUT, UNREADABLE_HEADERS, FakeRecord
from uow.processor.engine.batch import Batch
from uow.processor.engine.ports import Blocked
from uow.processor.engine.set_aside import SetAsideLimit, fault_of, frames
from uow.processor.engine.task import PartitionTask
from uow.processor.rules import transforms
from uow.processor.rules.transforms import InputRecord, transformed
from uow.schemas.error_classes import InternalError, RoutingError, shown
from uow.schemas.faults import ENDS


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def raised(text: str) -> Exception:
    try:
        try:
            float(text)
        except ValueError as error:
            raise LookupError(text) from error
    except LookupError as error:
        return error


def test_the_log_has_lines_of_code_and_classes_and_nothing_of_a_record(caplog: pytest.LogCaptureFixture) -> None:
    secret = "password=hunter2" * 100_000
    SetAsideLimit().take(INPUT, 7, raised(secret), 0)
    assert "hunter2" not in caplog.text
    assert len(caplog.text) < 2_000
    for told in ("D.components/0/7", "ValueError", "LookupError", "float(text)", "raise LookupError"):
        assert told in caplog.text


def test_of_a_deep_stack_the_last_lines_are_told() -> None:
    def deeper(depth: int) -> None:
        return deeper(depth + 1)

    with pytest.raises(RecursionError) as error:
        deeper(0)
    assert frames(error.value).count("deeper(depth + 1)") <= 30


def test_a_cause_that_goes_round_in_a_circle_ends() -> None:
    error = LookupError()
    error.__cause__ = other = KeyError()
    other.__cause__ = error
    assert "KeyError" in frames(error)


def test_a_record_that_comes_again_is_counted_once_and_another_blocks() -> None:
    limit = SetAsideLimit(1)
    assert [limit.take(INPUT, 7, KeyError(), now) for now in range(3)] == ["", "", ""]
    assert "set_aside_per_minute = 1" in limit.take(INPUT, 8, KeyError(), 3)
    assert limit.take(INPUT, 8, KeyError(), 60_000) == ""


def test_an_exception_without_a_text_blocks_and_is_refused_by_its_class() -> None:
    batch = Batch(INPUT)
    with batch:
        raise Mute
    assert isinstance(batch.outcome, Blocked)
    assert (str(batch.outcome), isinstance(fault_of(batch.outcome), Mute)) == ("Mute", True)
    assert InternalError.of(Mute()).text == "Mute"


class Panic(BaseException):
    """As code in Rust raises it."""


def test_a_panic_is_a_fault_and_the_end_of_the_process_is_none() -> None:
    batch = Batch(INPUT)
    with batch:
        raise Panic
    assert isinstance(batch.outcome, Blocked)
    assert isinstance(fault_of(batch.outcome), Panic)
    for end in ENDS:
        with pytest.raises(end), (batch := Batch(INPUT)):
            raise end
        assert isinstance(batch.outcome, end)


def test_a_long_text_is_cut_to_one_short_line() -> None:
    text = shown(ValueError("a\n" * 1_000_000 + "\ud800"))
    assert text.startswith("ValueError: a a a")
    assert len(text) <= 300
    assert shown(ValueError("\ud800")) == "ValueError: \\ud800"


def test_a_transform_that_raises_what_has_no_text_concerns_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def mute(record: InputRecord) -> Any:
        raise Mute

    monkeypatch.setattr(transforms, "transform_named", lambda name: mute)
    with pytest.raises(RoutingError, match="Mute"):
        transformed("mute", InputRecord("t", 0, 0, None, None, [], 0))


def test_headers_of_a_record_that_is_set_aside_are_looked_at_with_care() -> None:
    """A plain call `record.headers()` may end the process, where a name is no UTF-8 (`look_at_headers`)."""
    callers: list[str] = []

    class Looked(FakeRecord):
        def headers(self) -> Any:
            callers.append(sys._getframe(1).f_code.co_name)
            raise UNREADABLE_HEADERS

    task = PartitionTask(INPUT, context_of(policy_of()))
    plan = task.set_aside(Looked(0, [], b"x"), InternalError.of(KeyError()))
    assert callers == ["_take"]
    assert [dict(output.headers)["uow-error-class"] for output in plan.outputs] == [b"InternalError"]
