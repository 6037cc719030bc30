"""Units of shape `consecutive` as every version wrote them: `run-VERSION.json` has their records, and stays for ever.

Version 2 tells all of a component (`uow-component-...`, `uow-own-...`) and of the unit (`uow-opened-at`, ...); version 1 told its user headers alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.core.script import T0, TOPICS, Sent, c, clock, story
from uow.processor.engine.ports import Output
from uow.schemas.records import (
    ComponentRecord,
    Source,
    Unit,
    ranges_text,
)
from uow.topics.policies import AliasFamily, ExpirationPolicy, Shape
from uow.topics.runs import Run, unit_headers, unit_of

FOLDER = Path(__file__).parent
VERSION = 2
SENT: list[Sent] = [
    c(
        1,
        id="order-1",
        value=b"book",
        key=b"own key",
        component_id="c-1",
        reply_to="answers",
        correlation_id="k-1",
        priority=1,
        hops="gadget-planet,widget-world",
        user=[("trace", b"\x00\xff"), ("trace", None), ("uow-own-x", b"1"), ("JMSXUserID", "jill")],
    ),
    c(
        4,
        end=True,
        id="order-1",
        at=1.5,
        component_id="c-4",
        correlation_id="k-4",
        priority=9,
        expires_at=900,
        user=[
            ("colour", "red"),
            ("uow-inner-id", "inner"),
            ("uow-parent-id", "p"),
            ("uow-parent-seq", "2"),
            ("uow-parent-end", "true"),
            ("uow-parent-count", "0"),
        ],
    ),
]


def written(**settings: Any) -> tuple[list[Output], list[Unit]]:
    played = story(
        *SENT,
        clock(11),
        incomplete_expiration_ms=10_000,
        expiration_policy=ExpirationPolicy.DELIVER_PARTIAL,
        accept_aliases=frozenset({AliasFamily.JMS}),
        **settings,
    )
    return [output for output in played.outputs if output.topic == TOPICS.units], played.units


def stored(version: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((FOLDER / f"run-{version}.json").read_text("utf-8"))
    return records


def raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def read(version: int) -> tuple[Unit, list[ComponentRecord], list[tuple[str, bytes | None]]]:
    """Unit, components and the unit's headers, as a reader has them."""
    records = stored(version)
    heads = [[(name, raw(value)) for name, value in record["headers"]] for record in records]
    run = Run(unit_of(heads[0], "D", 77), 5)
    found: list[ComponentRecord] = []
    for offset, (record, headers) in enumerate(zip(records, heads, strict=True), 5):
        assert run.breach(headers) is None
        here = Source(TOPICS.units, 0, offset)
        found.append(run.take(headers, raw(record["key"]), raw(record["value"]), 78, here))
    assert run.is_whole
    return run.unit, found, unit_headers(heads[-1])


def test_what_is_written_today_is_the_golden_run_of_the_current_version() -> None:
    outputs, _ = written(shape=Shape.CONSECUTIVE)
    found = [
        {
            "key": (output.key or b"").hex(),
            "value": None if output.value is None else output.value.hex(),
            "headers": [[name, None if value is None else value.hex()] for name, value in output.headers],
        }
        for output in outputs
    ]
    assert found == stored(VERSION), "the wire changed: keep the golden file, write one of the next version"


def test_the_current_version_tells_what_an_envelope_tells_w94_w95() -> None:
    (output,), (envelope,) = written()
    unit, components, headers = read(VERSION)
    assert components == list(envelope.components)
    assert (unit.opened_at, unit.closed_at, unit.bytes) == (envelope.opened_at, envelope.closed_at, envelope.bytes)
    assert headers == output.headers


def test_version_1_is_read_as_it_was() -> None:
    unit, components, headers = read(1)
    assert (unit.id, unit.unit_id) == ("order-1", "5f0561a6-ca8e-5374-b977-90ef4a50290b")
    assert (unit.opened_at, unit.closed_at, unit.bytes, unit.expires_at) == (77, 77, 0, T0 + 900_000)
    assert ranges_text(unit.missing) == "2-3"
    place = "D.components", 0
    assert components == [
        ComponentRecord(
            1, False, "c-1", b"order-1", b"book", (("trace", b"\x00\xff"), ("trace", None)), 78, Source(*place, 0)
        ),
        ComponentRecord(4, False, "c-4", b"order-1", b"value b'4'", (("colour", b"red"),), 78, Source(*place, 1)),
    ]
    assert [name for name, _ in headers[-5:]] == [
        "uow-parent-id",
        "uow-parent-seq",
        "uow-parent-end",
        "uow-parent-count",
        "colour",
    ]
