"""A header name that is no UTF-8 is an error with a name, not the end of the process (W-23)."""

from __future__ import annotations

from typing import Any

import pytest
from fake_handles import FakeBroker, FakeHeaderLookup, consumed

import uow
from uow import errors
from uow.client.kafka_port import raw_headers
from uow.errors import DecodeError
from uow.processor.kafka.header_lookup import LookupTimeoutError


class BrokenRecord:
    def headers(self) -> Any:
        raise SystemError("headers returned a result with an exception set")


def test_unreadable_headers_are_a_decode_error() -> None:
    record: Any = BrokenRecord()
    with pytest.raises(DecodeError) as caught:
        raw_headers(record)
    assert caught.value.case == "headers"


def test_a_message_whose_headers_are_hidden_is_given_up_and_the_next_one_handed_out(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """Forwarded it would lose them; to look at it is a message without any, and only such a one is asked about."""
    told: list[Any] = []
    marked: list[tuple[str, bytes | None]] = [("x", b"")]
    fake.records = [
        consumed(b"%d" % offset, offset=offset, headers=headers)
        for offset, headers in enumerate([marked, None, None, [], marked])
    ]
    reader = connection.messages("t", group="g", on_given_up=told.append)
    assert next(reader).value == b"0"
    assert fake.looks == 0
    fake.hidden = {1, 3}
    assert [next(reader).value for _ in range(2)] == [b"2", b"4"]
    assert (len(told), fake.looks) == (2, 1)


def test_nobody_answering_is_no_loss(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*asked: Any) -> set[int]:
        raise LookupTimeoutError("t/0/0 was not read again in 6 s")

    fake.records = [consumed(b"plain", offset=0)]
    reader = connection.messages("t", group="g")
    with monkeypatch.context() as without_broker:
        without_broker.setattr(FakeHeaderLookup, "hidden", silent)
        with pytest.raises(errors.ReconnectTimeoutError):
            reader.receive(0)
    assert next(reader).value == b"plain"
