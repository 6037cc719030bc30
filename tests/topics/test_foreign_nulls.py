"""Nulls in headers that only the product writes are no values of senders, and every way of reading a record's headers says the same (W-17)."""

from __future__ import annotations

from random import Random

import pytest

from uow.processor.core.layout import Layout
from uow.topics import headers as names
from uow.topics.foreign_values import integer
from uow.topics.headers import Marks, Reading, Refusal, routed_of
from uow.topics.policies import AliasFamily

ID, SEQ = ("uow-id", b"u"), ("uow-seq", b"1")
RULE = ("uow-rule", b"r/UK@1")


VALUES: dict[str, list[bytes | None]] = {
    names.RULE: [RULE[1], None, b""],
    names.INPUT: [b"in/0/7", None, b"", b"odd"],
    names.ARRIVED_AT: [b"1000", None, b"", b"-1"],
    names.DELAY_MS: [b"5", None, b"", b"x"],
    names.SEQ: [b"1", None],
    names.END: [b"true", None],
    names.COUNT: [b"3", None],
}


def test_what_is_held_by_rule_is_read_in_the_same_way_at_a_restart() -> None:
    """`routed_of` reads by itself what the router wrote; a null, or a repeat, must not be taken by one of the two alone."""
    draw, held = Random(1), 0
    for _ in range(20_000):
        chosen = draw.choices([*VALUES], k=draw.randint(1, 6))
        headers = [ID, RULE, *((name, draw.choice(VALUES[name])) for name in chosen)]
        draw.shuffle(headers)
        read = Reading().read(headers)
        if isinstance(read, Marks) and read.routed is not None:
            held += 1
            assert routed_of(headers) == read.routed._replace(unnumbered=None), headers
    assert held > 1_000


@pytest.mark.parametrize("name", [names.ERASED, names.RULE])
def test_a_null_in_what_is_read_elsewhere_as_well_is_refused(name: str) -> None:
    """Held, a component would count as erased, and the digest of its unit would not be compared."""
    assert isinstance(Reading().read([ID, SEQ, (name, None)]), Refusal)


@pytest.mark.parametrize("name", ["uow-end", "uow-count", "uow-component-id", "uow-expires-at", "uow-deliver-at"])
def test_a_null_of_a_sender_is_absent(name: str) -> None:
    read = Reading().read([ID, SEQ, (name, None)])
    assert isinstance(read, Marks)
    assert read[:7] == Marks(b"u", 1, False)[:7]


def test_spring_s_json_is_that_of_its_own_headers_alone() -> None:
    """In bulk native headers are read as they are; so they are one by one."""
    reading = Reading([AliasFamily.SPRING])
    types = ("spring_json_header_types", b'{"uow-id": "java.util.UUID", "correlationId": "java.util.UUID"}')
    native = [("uow-id", b'"abc"'), SEQ, types]
    one_by_one = reading.read(native)
    layout = Layout.of([name for name, _ in native], reading, b"")
    assert layout is not None
    assert layout.is_plain([value for _, value in native])
    assert isinstance(one_by_one, Marks)
    assert one_by_one.id == b'"abc"'
    theirs = reading.read([("correlationId", b'"abc"'), ("sequenceNumber", b"1"), types])
    assert isinstance(theirs, Marks)
    assert theirs.id == b"abc"


@pytest.mark.parametrize(
    ("raw", "read"),
    [(b"12\r\n", b"12\r\n"), (b"1234", b"1234"), (b"  12", b"  12"), (b"\0\0\0\x07", b"7"), (b"\0" * 7 + b"\n", b"10")],
)
def test_a_text_with_a_line_end_is_no_integer(raw: bytes, read: bytes) -> None:
    assert integer(raw) == read
