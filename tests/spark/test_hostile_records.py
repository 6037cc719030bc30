"""No record stops the sink or the audit, whatever it says: it is kept with its reason, and the next unit is a row (W-127, W-216)."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.spark.stage import Headers, Stage, c
from uow.schemas import codec, formats, framing
from uow.schemas.records import (
    Answer,
    ComponentRecord,
    Outcome,
    Reason,
    Reference,
    Source,
    Unit,
    UnitOutcome,
)
from uow.spark_sink.comparison import DifferenceKind
from uow.spark_sink.recompute import Fate
from uow.spark_sink.tables import Table

pytestmark = pytest.mark.timeout(600)

KIND: Headers = [("uow-id", b"x"), ("uow-kind", b"unit")]
AVRO = framing.single_object_header("Unit")


def unit(destination: str, **changes: Any) -> Unit:
    """A unit that nobody formed, of one component."""
    part = ComponentRecord(1, True, None, b"x", b"v", (), 5, Source(f"{destination}.components", 0, 0))
    made = Unit("x", "u", destination, 1, UnitOutcome.COMPLETE, Reason.END, 1, 2, None, 1, 3, (), (part,))
    return replace(made, **changes)


def with_second(destination: str, **changes: Any) -> Unit:
    """A unit with a second component that differs."""
    [first] = unit(destination).components
    return unit(destination, components=(first, replace(first, seq=2, **changes)))


def referring(destination: str, source: Source) -> Unit:
    part = unit(destination).components[0]
    return unit(destination, components=(replace(part, value=None, reference=Reference(1, 2), source=source),))


def json_with(destination: str, **changes: Any) -> bytes:
    """A unit as JSON, some fields changed; those of its component by `part`."""
    value = json.loads(formats.to_json(unit(destination)))
    value["components"][0].update(changes.pop("part", {}))
    return json.dumps(value | changes).encode()


def in_a_run(destination: str, pos: bytes | None, **changes: bytes) -> Headers:
    said: dict[str, str | bytes | None] = {
        "uow-unit-id": b"u",
        "uow-generation": b"1",
        "uow-outcome": b"complete",
        "uow-reason": b"end",
        "uow-source": f"{destination}.components/0/0".encode(),
    }
    said |= {name.replace("_", "-"): value for name, value in changes.items()}
    return [*KIND, *said.items(), ("uow-pos", pos)]


def no_units(destination: str) -> dict[str, bytes | None]:
    """Values that are no units, by a word of the reason that must be told."""
    components = f"{destination}.components"
    named = json_with(destination, id="A" * 50)
    is_no_text = b"B" * 50, b"B" * 49 + b"\xc3"
    return {
        "neither Avro (null)": None,
        "neither Avro (empty)": b"",
        "neither Avro (short)": b"\xc3\x01",
        "fingerprint": b"\xc3\x01" + b"12345678" + b"unknown fingerprint",
        "no Outcome": framing.single_object_header("Outcome") + b"another record",
        "a record of an outcomes topic": codec.frame(Answer("c", "cancel", "x", destination, True, "t", "w", None, 1)),
        "fingerprint (Component)": framing.single_object_header("Component") + b"another record",
        "single-object (bytes)": AVRO + b"\xff" * 40,
        "single-object (2 GB of components)": AVRO
        + b"\x02a\x02b\x02d\x02\x00\x00\x00\x00\x00\x00\x00\x00"
        + b"\xee\xff\xff\xff\x0f\x02",
        "single-object (2 GB of text)": AVRO + b"\xee\xff\xff\xff\x0f",
        "single-object (cut)": codec.frame(unit(destination))[:-3],
        "single-object (time)": codec.frame(unit(destination, opened_at=2**62)),
        "single-object (year 33658)": codec.frame(unit(destination, opened_at=10**15)),
        "single-object (text)": codec.frame(unit(destination, id="A" * 50)).replace(b"A" * 50, b"\xff" * 50),
        "single-object (topic)": codec.frame(unit(destination)).replace(components.encode(), b"\xff" * len(components)),
        "schema id 7 names a registry, and none is set": b"\x00" + struct.pack(">i", 7) + b"no registry is set",
        "single-object (a second component's time)": codec.frame(with_second(destination, timestamp=10**15)),
        "single-object (its id)": codec.frame(with_second(destination, component_id="B" * 50)).replace(*is_no_text),
        "single-object (name of its header)": codec.frame(
            with_second(destination, headers=(("B" * 50, None),))
        ).replace(*is_no_text),
        "json (fields)": b'{"no": "unit"}',
        "json (deep)": b'{"a":' * 100_000,
        "json (digits)": b'{"schema":"uow.Unit","version":' + b"1" * 5000 + b"}",
        "json (surrogate)": named.replace(b"A" * 50, rb"\ud800"),
        "OverflowError (count)": json_with(destination, count=2**32 + 1),
        "OverflowError (bytes)": json_with(destination, bytes=10**30),
        "json (year 1)": json_with(destination, opened_at=-62_135_596_800_000),
        "OverflowError (partition)": json_with(
            destination, part={"source": {"topic": "t", "partition": 10**12, "offset": 0}}
        ),
        "xml (fields)": b"<no-unit/>",
        "xml (deep)": b"<unit>" + b"<a>" * 200_000,
        f"{components}/99/0": codec.frame(referring(destination, Source(components, 99, 0))),
        f"{components}/-1/0": codec.frame(referring(destination, Source(components, -1, 0))),
        f"{components}/0/-5": codec.frame(referring(destination, Source(components, 0, -5))),
        f"{components}/0/{10**15}": codec.frame(referring(destination, Source(components, 0, 10**15))),
        f"{components}/0/{2**63 - 1}": codec.frame(referring(destination, Source(components, 0, 2**63 - 1))),
        "nowhere/0/0": codec.frame(referring(destination, Source("nowhere", 0, 0))),
        f"{destination}.units/0/0": codec.frame(referring(destination, Source(f"{destination}.units", 0, 0))),
    }


def no_runs(destination: str) -> dict[str, Headers]:
    return {
        "uow-pos (0)": in_a_run(destination, b"0/0"),
        "uow-pos (5/3)": in_a_run(destination, b"5/3"),
        "uow-pos (null)": in_a_run(destination, None),
        "OverflowError (place)": in_a_run(destination, b"4000000000/9999999999"),
        "uow-generation": in_a_run(destination, b"1/1", uow_generation=b"9" * 4500),
        "run (time)": in_a_run(destination, b"1/1", uow_expires_at=b"9" * 18),
        "OverflowError (source)": in_a_run(destination, b"1/1", uow_source=b"d.components/9999999999/" + b"9" * 19),
        "uow-missing": in_a_run(destination, b"1/1", uow_missing=b"1-999999999999"),
        "neither Avro (inner)": [*KIND, ("uow-inner-id", b"x")],
    }


def no_outcomes(destination: str) -> dict[str, bytes | None]:
    """Values that are neither outcomes nor answers of this destination, by a word of the reason that must be told."""
    ids = Outcome("A" * 50, "u", destination, 1, UnitOutcome.EXPIRED, Reason.AGE, 1, 2, 0, 0, ())
    answer = Answer("c", "cancel", "A" * 50, destination, False, "t", "w", None, 1)
    is_no_text = ("A" * 50).encode(), b"\xff" * 50
    return {
        "neither Avro": None,
        "neither Avro (garbage)": b"garbage",
        "a unit": codec.frame(unit(destination)),
        "a unit (json)": formats.to_json(unit(destination)),
        "json": b"{" * 5000,
        "no Outcome (bytes)": framing.single_object_header("Outcome") + b"\xff" * 40,
        "no Outcome (2 GB of text)": framing.single_object_header("Outcome") + b"\xee\xff\xff\xff\x0f",
        "no Outcome (cut)": codec.frame(ids)[:-9],
        "no Outcome (text)": codec.frame(ids).replace(*is_no_text),
        "no Outcome (year 33658)": codec.frame(replace(ids, closed_at=10**15)),
        "no Answer (text)": codec.frame(answer).replace(*is_no_text),
        "no Answer (time)": codec.frame(replace(answer, at=2**62)),
        "is about destination west": codec.frame(replace(ids, destination="west")),
        "is about destination west (answer)": codec.frame(replace(answer, destination="west")),
        "fingerprint": framing.single_object_header("Component") + b"another record",
        "schema id 7 names a registry": b"\x00" + struct.pack(">i", 7) + b"no registry is set",
    }


HOSTILE_ERRORS: list[Headers] = [
    [],
    [("uow-id", b"\xff"), ("uow-error-class", b"\xff\xfe"), ("uow-source", b"\xff/\xff/\xff")],
    [("uow-id", None), ("uow-error-class", None), ("uow-source", None)],
    [("uow-error-class", b"UowError"), ("uow-source", b"////"), ("uow-failure-reason", b"'; DROP")],
    [("uow-error-class", b"UowError"), ("uow-source", b"t/99999999999/" + b"9" * 40), ("uow-missing", b"1-" * 1000)],
]


def test_each_poison_is_kept_with_its_reason_and_the_next_unit_is_a_row(stage: Stage) -> None:
    """After a restart as well. References lead nowhere but to the destination's own components."""
    names = stage.names
    told: list[tuple[str, bytes | None, Headers]] = []
    for reason, value in no_units(names.destination).items():
        told.append((reason, value, KIND))
    for reason, headers in no_runs(names.destination).items():
        told.append((reason, b"v", headers))
    stage.put_all(names.units, [(b"x", value, headers) for _, value, headers in told])
    many = 2000
    stage.put_all(names.units, [(b"f", b"\xc3\x01%08d" % number, KIND) for number in range(many)])
    stage.put_all(names.rejected, [(b"x", b"v", headers) for headers in HOSTILE_ERRORS])
    stage.put_all(names.errors, [(None, None, headers) for headers in HOSTILE_ERRORS])
    for topic in (names.closed_changelog, names.commands):
        for value, headers in ((None, []), (b"\xc3\x01garbage", HOSTILE_ERRORS[1]), (b"{" * 5000, HOSTILE_ERRORS[3])):
            stage.put(topic, b"x", value, headers)
    no_reports = no_outcomes(names.destination)
    stage.put_all(names.outcomes, [(b"report", value, HOSTILE_ERRORS[1]) for value in no_reports.values()])
    stage.send([c("good", 1, end=True)])
    stage.work()
    stage.sink()
    stage.send([c("better", 1, end=True)])
    stage.work()
    stage.sink()
    unreadable = stage.rows(Table.UNREADABLE)
    rows = [row for row in unreadable if row.key == b"x"]
    reports = [row for row in unreadable if row.key == b"report"]
    assert [(row.value, row.topic) for row in reports] == [(value, names.outcomes) for value in no_reports.values()]
    reasons = zip((row.reason for row in reports), no_reports, strict=True)
    assert [told for told, reason in reasons if reason.split(" (")[0] not in told] == []
    assert len(unreadable) == len(rows) + len(reports) + many, "each with a fingerprint of its own"
    assert [(row.value, row.key, row.topic) for row in rows] == [(value, b"x", names.units) for _, value, _ in told]
    assert [
        row.reason for row, (reason, *_) in zip(rows, told, strict=True) if reason.split(" (")[0] not in row.reason
    ] == []
    assert [[(h.name, h.value) for h in row.headers] for row in rows] == [headers for *_, headers in told]
    assert {row.id for row in stage.rows(Table.UNITS)} == {"good", "better"}
    assert len(stage.rows(Table.REJECTED)) == 2 * len(HOSTILE_ERRORS)
    assert stage.rows(Table.PASSED) == []
    report = stage.audit()
    assert report.totals == {
        DifferenceKind.UNREADABLE: len(unreadable) + 3,
        DifferenceKind.UNEXPECTED: 2 * len(HOSTILE_ERRORS),
    }
    assert (report.count(Fate.DELIVERED), report.left_out) == (2, 0)
