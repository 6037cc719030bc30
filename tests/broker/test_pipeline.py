"""A forwarder is taken out of a running pipeline: with a drain order holds, without one the last stage refuses (S-16)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from client_places import Topics

import uow
from tests.processes import PATIENCE_S, wait_for

pytestmark = pytest.mark.broker


@contextmanager
def forwarding(
    connection: uow.Connection, come_from: str, to: str, blocked: list[uow.OrderBlocked] | None = None
) -> Iterator[None]:
    """A forwarder that keeps the order, in a thread."""
    reader = connection.messages(come_from, group=f"{come_from}-stage", order="preserve")
    run = threading.Thread(
        target=reader.run,
        args=(lambda message: connection.forward(message, to=to),),
        kwargs={"on_blocked": None if blocked is None else blocked.append},
    )
    run.start()
    try:
        yield
    finally:
        reader.stop()
        run.join(PATIENCE_S)


@pytest.mark.parametrize("count", [1, pytest.param(200, marks=pytest.mark.drill)], ids=["few", "backlog"])
def test_a_forwarder_is_taken_out_without_a_record_out_of_order_or_refused_s16(broker: Any, count: int) -> None:
    """Version 1 goes in, middle, out; version 2 would leave the first stage out. A drain begins with as much under way as stages are slower than senders."""
    places, name = Topics(broker.bootstrap), f"pipeline-{uuid4().hex[:8]}"
    first, middle, last = (f"{name}.{each}" for each in ("in", "middle", "out"))
    places.make(first, middle, last, partitions=2)
    blocked: list[uow.OrderBlocked] = []
    with (
        uow.connect(broker.bootstrap) as one,
        uow.connect(broker.bootstrap) as two,
        uow.connect(broker.bootstrap) as sender,
        forwarding(one, first, middle),
        forwarding(two, middle, last, blocked),
        sender.messages(last, group=None, start="earliest") as out,
    ):

        def send(version: int, to: str) -> None:
            for number, key in itertools.product(range(count), "abcdef"):
                sender.send("none", f"{version}/{number}", to=to, key=key, headers={"uow-pipeline-version": version})

        send(0, first)
        sender.drain(first, last, 1, PATIENCE_S * count)
        send(1, first)
        sender.drain(first, last, 2, PATIENCE_S * count)
        send(2, middle)
        send(3, middle)  # nobody has drained before that
        wait_for(lambda: {each.partition for each in blocked} == {0, 1}, PATIENCE_S, lambda: str(blocked))
        assert all("version 3 behind version 2" in each.cause for each in blocked)
        taken = [next(out) for _ in range(4 + 18 * count)]
    values: dict[bytes | None, list[bytes | None]] = {}
    for message in taken:
        values.setdefault(message.key, []).append(message.value)
    assert values.pop(None) == [None] * 4, "two barriers in two partitions"
    expected = [b"%d/%d" % each for each in itertools.product(range(3), range(count))]
    assert values == dict.fromkeys((b"a", b"b", b"c", b"d", b"e", b"f"), expected)
