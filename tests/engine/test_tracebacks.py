"""A batch whose task raised is not kept by the error that tells why (ER-03)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from tests.fake_record import FakeRecord
from uow.processor.engine.batch import Batch
from uow.processor.engine.ports import Blocked, Tp
from uow.processor.engine.set_aside import frames
from uow.processor.engine.tracebacks import without_frames

TP = Tp("D.components", 0)


class Referable(FakeRecord):
    """A record to which a weak reference can be made."""


class Raising:
    """A task that fails at each batch."""

    def believe(self, latest: int) -> None: ...
    def process(self, records: list[Any], commands: Any) -> None:
        raise LookupError("nobody foresaw this")


def test_the_error_of_a_batch_tells_its_lines_of_code_and_keeps_none_of_its_records() -> None:
    task: Any = Raising()
    gc.disable()
    try:
        batch = Batch(TP, records=[record := Referable(0, [], b"v", None, 0, TP)])
        seen = weakref.ref(record)
        del record
        with batch:
            batch.apply(task)
        outcome = batch.outcome
        del batch
        is_alive = seen() is not None
    finally:
        gc.enable()
    assert not is_alive
    assert isinstance(outcome, Blocked)
    assert "in process\n" in frames(outcome.__cause__)


def test_causes_that_go_round_in_a_circle_are_freed_once() -> None:
    first, second = LookupError("a"), OSError("b")
    first.__cause__, second.__context__ = second, first
    assert without_frames(first) is first
