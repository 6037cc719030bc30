"""A header name that is no UTF-8: confluent_kafka raises at the first look, and kills the process at the second (W-23)."""

from __future__ import annotations

from typing import Any

import pytest

from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Tp
from uow.processor.engine.task import PartitionTask
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy, HandlingPolicy


class Broken:
    """A consumed record as the binding gives it."""

    def __init__(self, offset: int) -> None:
        self.at, self.looks = offset, 0

    def headers(self) -> Any:
        self.looks += 1
        assert self.looks == 1, "the second look kills the process"
        raise SystemError("headers returned a result with an exception set")

    def topic(self) -> str:
        return "D.components"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b"value"

    def timestamp(self) -> tuple[int, int]:
        return 2, 1000


@pytest.mark.parametrize("handling", list(HandlingPolicy))
def test_unreadable_record_is_refused_and_never_looked_at_twice(handling: HandlingPolicy) -> None:
    """Under `pass_through` as well: what cannot be shown cannot be passed on untouched."""
    context = TaskContext("D", DestinationTopics("A", "D"), DestinationPolicy(handling), 1, b"", b"")
    plan = PartitionTask(Tp("D.components", 0), context).process([Broken(0), Broken(1)])
    assert [output.topic for output in plan.outputs] == ["D.rejected"] * 2
    for number, output in enumerate(plan.outputs):
        assert (output.key, output.value) == (b"key", b"value")
        said = dict(output.headers)
        assert said["uow-error-class"] == b"DecodeError"
        assert said["uow-error-case"] == b"headers"
        assert said["uow-source"] == b"D.components/0/%d" % number
