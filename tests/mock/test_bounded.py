"""A call of the library that may never return (ER-11, ER-17)."""

from __future__ import annotations

import threading

import pytest

from uow.processor.kafka.bounded import returns


def test_call_that_never_returns_is_left_behind() -> None:
    never = threading.Event()
    assert not returns(lambda: never.wait() and None, 0.01)
    never.set()


def test_call_that_returns_is_over_and_its_error_is_raised() -> None:
    done: list[int] = []
    assert returns(lambda: done.append(1), 10)
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        returns(lambda: 1 // 0 and None, 10)
