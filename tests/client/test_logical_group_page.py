"""The program of `docs/message-broker.md`, on handles in memory: it sends a logical group, and reads whole ones (B-117, B-119)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fake_handles import FakeBroker
from test_client_readers import a_unit, record_of

import uow
from uow.topics.headers import END, SEQ

PAGE = (Path(__file__).parents[2] / "docs" / "message-broker.md").read_text(encoding="utf-8")


class Enough(Exception):
    """Ends the page's endless loop."""


def test_the_program_of_the_page_sends_a_group_and_reads_whole_ones_b117_b119() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(program.splitlines()) < 15
    invoiced: list[tuple[str, list[bytes | None]]] = []

    def invoice(group: str, values: list[bytes | None]) -> None:
        invoiced.append((group, values))
        if len(invoiced) == 3:
            raise Enough

    names: dict[str, Any] = {"invoice": invoice, "uow": uow}
    exec(program, names)  # noqa: S102 - our own page
    fake = FakeBroker()
    fake.topics = {"orders.components": 1, "orders.units": 1, "orders.errors": 1}
    with fake.connect() as connection:
        sent = names["send"](connection)
        marks = [(each.marks[SEQ], each.marks.get(END)) for each in fake.visible]
        assert marks == [(b"1", None), (b"2", None), (b"3", b"true")]
        assert {each.key for each in fake.visible} == {sent.encode()}
        fake.records = [record_of(a_unit(f"order-{number}"), number, topic="orders.units") for number in range(3)]
        with pytest.raises(Enough):
            names["read"](connection)
    assert invoiced == [(f"order-{number}", [b'{"item":"book"}', None]) for number in range(3)]
