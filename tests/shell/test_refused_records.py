"""A record that a broker refuses for what it is fails alone, whatever it is; its partition goes on (ER-03, F20; decision 94)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.shell.memory_kafka import MemoryContents, MemoryKafka, MemorySink
from tests.shell.test_whole_worker import P0, belongs_to, ids
from tests.shell.whole_worker import UNITS, in_a_loop, running, send, settings, until
from uow.processor.engine.external_values import whole_outputs
from uow.processor.engine.ports import Plan, RawRecord, Refused
from uow.topics.policies import ExpirationPolicy, Shape

LARGE = b"x" * 3_000


class LimitedSink(MemorySink):
    """Brokers whose topics take values up to a limit; the record that was too large is known."""

    def __init__(self, kafka: MemoryKafka, limits: Mapping[str, int]) -> None:
        super().__init__(kafka, settings().transactional_id)
        self.limits, self.refusals = limits, 0

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        for plan in plans:
            for output in whole_outputs(plan, MemoryContents(self.kafka)):
                if len(output.value or b"") > self.limits.get(output.topic, 1 << 30):
                    self.refusals += 1
                    raise Refused("too large", plan.tp, output)
        super().write(plans, token)


def said(record: RawRecord) -> dict[str, bytes | None]:
    return dict(record.headers() or [])


@in_a_loop
async def test_a_unit_that_its_topic_refuses_fails_and_its_components_go_to_errors() -> None:
    kafka = MemoryKafka()
    bad, good = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 0, "good")
    send(kafka, bad, (1, False), (2, True), value=LARGE)
    send(kafka, good, (1, True))
    sink = LimitedSink(kafka, {"D.units": 4_000})
    async with running(kafka, sink=sink) as app:
        await until(lambda: ids(kafka) == [good])
        assert [record.value() for record in kafka.topic("D.errors")] == [LARGE, LARGE]
        assert {said(record)["uow-error-case"] for record in kafka.topic("D.errors")} == {b"limit"}
        send(kafka, bad, (1, True))
        await until(lambda: kafka.topic("D.rejected"))
        assert said(kafka.topic("D.rejected")[0])["uow-error-class"] == b"UnitClosedError"
        assert (sink.refusals, app.status.blocks) == (1, 0)


@in_a_loop
async def test_plain_records_that_the_topic_refuses_are_rejected_whole_and_others_pass() -> None:
    kafka = MemoryKafka()
    key = belongs_to(kafka, 0, "plain").encode()
    for number in range(20):
        kafka.append("D.components", key, LARGE if number % 4 == 0 else b"%d" % number, [("n", b"%d" % number)])
    sink = LimitedSink(kafka, {"D.units": 2_000})
    async with running(kafka, sink=sink) as app:
        await until(lambda: len(kafka.topic("D.units")) + len(kafka.topic("D.rejected")) == 20)
        assert [said(each)["n"] for each in kafka.topic("D.units")] == [b"%d" % n for n in range(20) if n % 4]
        rejected = kafka.topic("D.rejected")
        assert [(each.value(), said(each)["n"]) for each in rejected] == [(LARGE, b"%d" % n) for n in range(0, 20, 4)]
        assert {said(each)["uow-error-case"] for each in rejected} == {b"bytes"}
        assert (sink.refusals, app.status.blocks) == (5, 0)


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.REFERENCE], ids=["in the unit", "read back"])
def test_what_errors_refuses_says_why_and_where_the_rest_stayed(shape: Shape) -> None:
    @in_a_loop
    async def plays() -> None:
        kafka = MemoryKafka()
        policy = replace(UNITS, incomplete_expiration_ms=10, expiration_policy=ExpirationPolicy.REDIRECT, shape=shape)
        bad, good = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 0, "good")
        send(kafka, bad, (1, False), value=LARGE)
        send(kafka, bad, (2, False))
        sink = LimitedSink(kafka, {"D.errors": 2_000})
        async with running(kafka, settings(policy=policy), sink=sink) as app:
            kafka.clock.now += 11
            send(kafka, good, (1, True))
            await until(lambda: len(kafka.topic("D.errors")) == 2 and kafka.topic("D.units"))
            first, second = kafka.topic("D.errors")
            assert (first.key(), first.value(), second.value()) == (None, None, b"x")
            text = said(first)["uow-error-text"] or b""
            assert text.endswith(b"are refused by a broker: key, value and headers stayed at uow-source")
            assert said(first)["uow-source"] == b"D.components/0/0"
            assert app.status.blocks == 0

    plays()


@in_a_loop
async def test_a_topic_that_refuses_even_the_reasons_blocks_its_partition() -> None:
    kafka = MemoryKafka()
    bad, good = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 1, "good")
    send(kafka, bad, (1, True), value=LARGE)
    send(kafka, good, (1, True))

    class Closed(LimitedSink):
        def write(self, plans: Sequence[Plan], token: Any) -> None:
            for plan in plans:
                for output in plan.outputs:
                    if output.topic == "D.errors":
                        raise Refused("nothing goes here", plan.tp, output)
            super().write(plans, token)

    async with running(kafka, sink=Closed(kafka, {"D.units": 2_000})) as app:
        await until(lambda: P0 in app.status.blocked)
        await until(lambda: ids(kafka) == [good])
