"""A broker that is gone is told of now and then, not twenty times a second."""

from __future__ import annotations

import logging

import pytest

from uow.processor.kafka.clients import HandleLog
from uow.processor.kafka.outage import AGAIN_S, Outage


def test_lines_that_differ_in_numbers_are_said_once_and_counted() -> None:
    now = [100.0]
    outage = Outage(lambda: now[0])
    line = "FAIL [thrd:127.0.0.1:9092/1]: Connect failed: Connection refused (after {}ms in state CONNECT)"
    said = [outage.line(line.format(number)) for number in range(20)]
    assert said == [line.format(0), *[None] * 19]
    assert outage.line("another trouble") == "another trouble"
    now[0] += AGAIN_S
    assert outage.line(line.format(77)) == f"{line.format(77)} (19 more like it in 30 s)"
    now[0] += AGAIN_S
    assert outage.line(line.format(78)) == line.format(78)


def test_whoever_looks_for_broken_connections_sees_every_line(caplog: pytest.LogCaptureFixture) -> None:
    """ER-11: doubt must not hang on what is shown."""
    seen: list[str] = []
    handler = HandleLog(logging.getLogger("uow.librdkafka.sink"), seen.append)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            handler.emit(logging.LogRecord("", logging.ERROR, "", 0, f"FAIL [sink]: broken {number}", (), None))
    assert len(seen) == 5
    assert [record.getMessage() for record in caplog.records] == ["FAIL [sink]: broken 0"]
