"""The cost of each way of reading or holding inputs grows no faster than the inputs (B-06).

Each case is done with inputs of one size and of eight times that size. Two things are compared, as ratios: how many functions of Python were called, which no busy machine
changes; and the processor time of this thread, for what a library does inside one call, with a bound that a square is beyond and a busy machine is not.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.core.rule_script import Table, r, row
from tests.core.script import Story, story
from tests.core.test_fan_in import gathering, manifest, reply
from tests.engine.test_by_rule_restored import new_task
from tests.engine.test_recycling import recycled
from uow.processor.core.strays import Stray
from uow.processor.engine.group_view import arrivals
from uow.processor.rules.expressions import Expression
from uow.processor.rules.paths import Place
from uow.processor.rules.record_view import RecordView
from uow.processor.rules.xml_documents import xml_root
from uow.schemas.aggregates import element_of
from uow.schemas.error_classes import DecodeError

TIMES = 8
MOST_CALLS, MOST_TIME = 2 * TIMES, 3 * TIMES
"""A square would be 64 times as much."""


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, those of libraries included."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def seconds(work: Callable[[], object]) -> float:
    """The least of some tries. The garbage collector rests: it goes through all that this process holds, of other tests as well."""
    tries = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            began = time.thread_time()
            work()
            tries.append(time.thread_time() - began)
    finally:
        gc.enable()
    return min(tries)


def check_linear(work: Callable[[int], Callable[[], object]], size: int) -> None:
    small, large = work(size), work(TIMES * size)
    small()  # whatever is imported or compiled at first
    assert calls(large) <= MOST_CALLS * calls(small)
    assert seconds(large) <= MOST_TIME * max(seconds(small), 1e-4)


def early_replies(count: int) -> Callable[[], object]:
    """A manifest that comes after so many replies, most of which it does not list."""
    steps = [reply(number, at=0) for number in range(1, count + 1)]
    return lambda: story(*steps, manifest(at=1), rules=Table(gathering()), poll=10**6)


def lone_components(count: int) -> Callable[[], object]:
    """So many components without a group, some of the key of those that come meanwhile; half of them are recycled."""
    uk = row(complete_count=1, age_ms=60_000)
    (group,) = story(r("UK", at=0), rules=Table(row(complete_count=9, age_ms=60_000))).task.groups.values()
    (component,) = arrivals(group)
    placed = [replace(component, source=replace(component.source, offset=at)) for at in range(count)]
    strays = [Stray(group.id, 1 + at, each, b"%d" % at, 100) for at, each in enumerate(placed)]
    orders = [recycled(at, at=1) for at in reversed(range(0, count, 2))]

    def come() -> None:
        played = Story(new_task(table=Table(uk)), offset=count)
        played.task.restore_strays(strays)
        played.send(*[r("UK", at=0) for _ in range(count)], *orders)
        assert played.task.orphans == count - len(orders)

    return come


def json_value(value: Callable[[int], bytes], text: str) -> Callable[[int], Callable[[], object]]:
    """An expression over a JSON value of a size."""
    expression = Expression(text)

    def of(size: int) -> Callable[[], object]:
        made = value(size)
        return lambda: expression.boolean(RecordView(None, made))

    return of


def xml_value(value: Callable[[int], bytes], path: str) -> Callable[[int], Callable[[], object]]:
    """A place in an XML value of a size."""
    place = Place(f"path:{path}")

    def of(size: int) -> Callable[[], object]:
        made = value(size)
        return lambda: place.text(RecordView(None, made))

    return of


def element(encoding: str) -> Callable[[int], Callable[[], object]]:
    """A document that declares an encoding, as a part of an aggregate; and as the router reads it."""

    def both(value: bytes) -> None:
        element_of(value)
        try:
            xml_root(value)
        except DecodeError:
            pass

    def of(size: int) -> Callable[[], object]:
        text = f"<?xml version='1.0' encoding='{encoding}'?><a>{'äb' * size}</a>"
        made = text.encode(encoding, "replace")
        return lambda: both(made)

    return of


@pytest.mark.parametrize(
    ("work", "size"),
    [
        pytest.param(early_replies, 100, id="a manifest after its replies"),
        pytest.param(lone_components, 500, id="components without a group"),
        pytest.param(json_value(lambda size: b'{"p": [%b1]}' % (b"1," * size), "p[0] > 1"), 1_000, id="many values for CEL"),
        pytest.param(json_value(lambda size: b'{"p": %b1%b}' % (b"[" * size, b"]" * size), "p > 1"), 2_000, id="depth for CEL"),
        pytest.param(json_value(lambda size: b'{"q": [%b1], "p": 1}' % (b"1," * size), "p > 0"), 10_000, id="many values beside"),
        pytest.param(json_value(lambda size: b'{"p": %b}' % (b"9" * size), "p > 1"), 20_000, id="digits"),
        pytest.param(json_value(lambda size: b'{"p": "%b"}' % (b"ab" * size), "p.contains(\"abababc\")"), 20_000, id="a text"),
        pytest.param(json_value(lambda size: b"{%b\"p\": 1}" % (b'"p": 2,' * size), "p > 1"), 5_000, id="one key many times"),
        pytest.param(xml_value(lambda size: b"<a>%b</a>" % (b"<b>x</b>" * size), "/a/b[1]"), 2_000, id="children"),
        pytest.param(xml_value(lambda size: b"<a>%b</a>" % (b"<b>x</b>" * size), "//b[c='x']"), 2_000, id="a test of each"),
        pytest.param(xml_value(lambda size: b"<a>%b</a>" % (b"<b><c>x</c></b>" * size), "//*[local-name()='d']"), 2_000, id="any element"),
        pytest.param(xml_value(lambda size: b"<a %b/>" % b" ".join(b"x%d='1'" % at for at in range(size)), "/a/@x1"), 500, id="attributes"),
        *[
            pytest.param(element(name), 1_000, id=f"encoding {name}")
            for name in ("utf-8", "utf-7", "utf-16", "iso-8859-1", "gb18030", "iso-2022-jp")
        ],
    ],
)  # fmt: skip
def test_the_cost_grows_no_faster_than_the_input(work: Callable[[int], Callable[[], object]], size: int) -> None:
    check_linear(work, size)


def test_a_square_is_noticed() -> None:
    """The check is worth something, in calls and in time."""

    def in_calls(size: int) -> Callable[[], object]:
        return lambda: [len("x") for _ in range(size * size)]

    def in_time(size: int) -> Callable[[], object]:
        return lambda: (b"ab" * size * size).find(b"c")

    with pytest.raises(AssertionError):
        check_linear(in_calls, 50)
    with pytest.raises(AssertionError):
        check_linear(in_time, 1_000)
