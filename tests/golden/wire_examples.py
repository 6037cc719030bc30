"""One example of every record, as every released version must give it back, and the writer of new golden files.

`python -m tests.golden.wire_examples` writes the golden files of versions that have none yet; it never changes one that is there.
A golden file stays for ever. When a definition changes: copy it to `schemas/definitions/released/`, raise its version in
`uow.schemas.framing.DEFINITIONS`, add the example of the new version below (the old one keeps its place, with new fields at their
defaults), run this file.
"""

from __future__ import annotations

import json
from pathlib import Path

from uow.schemas import codec, framing
from uow.schemas.formats import FORMAT_VERSION, to_json, to_xml
from uow.schemas.records import (
    MAX_SEQ,
    Answer,
    Attributes,
    ChangelogRow,
    ClosedGroup,
    ComponentRecord,
    DeadlineWarning,
    DecidedCommand,
    GroupRow,
    LastArrived,
    LedgerRecord,
    ManifestPart,
    OffsetRange,
    Outcome,
    PieceRow,
    Range,
    Reason,
    Record,
    Reference,
    ReferenceRow,
    SettingsRow,
    Source,
    SourceCount,
    Unit,
    UnitOutcome,
)

FOLDER = Path(__file__).parent

_FIRST = ComponentRecord(
    seq=1,
    end=False,
    component_id="0b8e6a1e-6a4e-4f0e-9f53-0d7ad53dbbc1",
    key=b"order-1",
    value=b'{"item": "flash drive"}',
    headers=(("uow-id", b"order-1"), ("uow-seq", b"1"), ("trace", b"\x00\xff"), ("trace", None), ("trace", b"")),
    timestamp=1_700_000_000_000,
    source=Source("megazon.components", 3, 41),
)
_LAST = ComponentRecord(
    seq=MAX_SEQ,
    end=True,
    component_id=None,
    key=None,
    value=None,
    headers=(),
    timestamp=-1,
    source=Source("gadget-planet", 0, 2**63 - 1),
    reference=Reference(2**40, 2**32 - 1),
)
_UNIT = Unit(
    id="order-1",
    unit_id="6f0f3b64-6f2e-5c0b-8f0d-0c7c2b0a8d11",
    destination="megazon",
    generation=1,
    outcome=UnitOutcome.PARTIAL,
    reason=Reason.COMPONENT_EXPIRED,
    opened_at=1_700_000_000_000,
    closed_at=1_700_000_000_250,
    expires_at=1_700_000_060_000,
    count=2,
    bytes=151,
    missing=(Range(2, 2), Range(4, MAX_SEQ)),
    components=(_FIRST, _LAST),
)

EXAMPLES: dict[tuple[str, int], Record] = {
    ("Component", 1): _FIRST,
    ("Unit", 1): _UNIT,
    ("Outcome", 1): Outcome(
        id="größer-1",
        unit_id=_UNIT.unit_id,
        destination="megazon",
        generation=2,
        outcome=UnitOutcome.EXPIRED,
        reason=Reason.AGE,
        opened_at=0,
        closed_at=1,
        count=2,
        bytes=300,
        missing=(Range(3, 3), Range(5, MAX_SEQ)),
        rule=None,
        command_id="c-1",
    ),
    ("Outcome", 2): Outcome(
        id="order-1",
        unit_id=_UNIT.unit_id,
        destination="megazon",
        generation=1,
        outcome=UnitOutcome.COMPLETE,
        reason=Reason.END,
        opened_at=1_700_000_000_000,
        closed_at=1_700_000_000_250,
        count=3,
        bytes=300,
        missing=(),
        last_arrived=LastArrived(2, "größer-2"),
    ),
    ("Outcome", 3): Outcome(
        id="low-stock/France",
        unit_id=_UNIT.unit_id,
        destination="supply",
        generation=3,
        outcome=UnitOutcome.PARTIAL,
        reason=Reason.AGE,
        opened_at=1_700_000_000_000,
        closed_at=1_700_000_030_250,
        count=7,
        bytes=700,
        missing=(Range(8, 10),),
        rule="low-stock/France@4",
        last_arrived=LastArrived(7, "stock.events/0/17"),
        deadline_at=1_700_000_030_000,
        per_source=(SourceCount("stock.events", 7),),
        target="orders.france",
        supersedes=_UNIT.unit_id,
    ),
    ("Answer", 1): Answer(
        "c-1",
        "cancel",
        "order-1",
        "megazon",
        True,
        "cancelled 2 components",
        "asked for by Jill",
        None,
        1_700_000_000_000,
    ),
    ("DeadlineWarning", 1): DeadlineWarning(
        id="low-stock/größer",
        destination="supply",
        generation=3,
        opened_at=1_700_000_000_000,
        at=1_700_000_024_000,
        deadline_at=1_700_000_030_000,
        reason=Reason.COMPONENT_EXPIRED,
        count=2,
        missing=(Range(2, 2), Range(4, MAX_SEQ)),
        sources=("orders",),
        rule="low-stock/größer@4",
    ),
    ("ChangelogComponent", 1): ChangelogRow(1, 1_700_000_000_000, 41, True, Attributes(0, 5, 3), b"\x02\x00"),
    ("ChangelogReference", 1): ReferenceRow(1, 1_700_000_000_000, 41, False, None, b"\x02\x00"),
    ("ChangelogPiece", 1): PieceRow(1, 1_700_000_000_000, 41, False, None, b"\x02\x00"),
    ("ChangelogGroup", 1): GroupRow(2, 1_700_000_000_000, 7, (Range(3, 4),), 1_700_000_001_000, 5),
    ("ChangelogGroup", 2): GroupRow(
        2, 1_700_000_000_000, None, (), 1_700_000_001_000, 0, "low-stock/größer@5", 1_700_000_000_500
    ),
    ("ChangelogGroup", 3): GroupRow(
        1,
        1_700_000_000_000,
        rule="trips/*@5",
        manifest=ManifestPart("fan-out-größer", 1_700_000_000_500, b'{"name":"trip","requests":[]}'),
    ),
    ("ChangelogGroup", 4): GroupRow(
        1, 1_700_000_000_000, rule="low-stock/UK@5", deadlines=(1_700_000_400_000, 1_700_003_600_000)
    ),
    ("ChangelogGroup", 5): GroupRow(1, 1_700_000_000_000, waived=(Range(3, 4),), warned_at=1_700_000_000_750),
    ("ChangelogGroup", 6): GroupRow(
        1, 1_700_000_000_000, rule="low-stock/UK@5", waits_since=1_700_000_000_500, has_turn=True
    ),
    ("ChangelogSettings", 1): SettingsRow((("accept_aliases", '["jms", "nifi"]'), ("expiration_policy", "redirect"))),
    ("Ledger", 1): LedgerRecord(
        layout=1,
        from_offset=100,
        to_offset=2_100,
        floor=2_100,
        clock=1_700_000_000_000,
        reader=1,
        not_held=(OffsetRange(101, 101), OffsetRange(900, 2_099)),
        closed=(
            ClosedGroup(b"order-1", 1, UnitOutcome.COMPLETE, Reason.END, 5, 101, 1_700_000_000_000),
            ClosedGroup("größer-1".encode(), 2, UnitOutcome.FAILED, Reason.LIMIT, 9, 900, 1_700_000_000_001),
        ),
    ),
    ("Ledger", 2): LedgerRecord(
        layout=1,
        from_offset=2_100,
        to_offset=2_100,
        floor=2_100,
        clock=1_700_000_000_000,
        reader=1,
        not_held=(),
        closed=(ClosedGroup(b"order-1", 2, UnitOutcome.CANCELLED, Reason.COMMAND, 5, 2_100, 1_700_000_000_000),),
        commands=(DecidedCommand(b"c-1", 1_700_000_000_000), DecidedCommand("größer".encode(), 1_700_000_000_001)),
    ),
    ("Ledger", 3): LedgerRecord(
        layout=1,
        from_offset=2_100,
        to_offset=2_102,
        floor=2_102,
        clock=1_700_000_000_000,
        reader=1,
        not_held=(),
        closed=(
            ClosedGroup(
                b"order-1",
                1,
                UnitOutcome.COMPLETE,
                Reason.END,
                2,
                2_102,
                1_700_000_000_000,
                b"\x01\x02\x03\x04\xff\xff\xff\xff",
            ),
        ),
    ),
}
"""Record name and version to the record that its golden bytes are read as today."""

UNIT_EXAMPLE = _UNIT


def path(name: str, version: int, suffix: str) -> Path:
    """Where a version's golden file lies."""
    return FOLDER / f"{framing.DEFINITIONS[name][0]}-{version}.{suffix}"


def hex_lines(data: bytes) -> str:
    """Bytes as text that can be compared line by line."""
    return "\n".join(data[at : at + 32].hex(" ") for at in range(0, len(data), 32)) + "\n"


def write_missing() -> list[Path]:
    """Writes golden files for current versions that have none."""
    files: dict[Path, bytes] = {}
    for name, (_, version) in framing.DEFINITIONS.items():
        files[path(name, version, "avsc")] = framing.definition_text(name).encode()
        files[path(name, version, "hex")] = hex_lines(codec.frame(EXAMPLES[name, version])).encode()
    files[FOLDER / f"unit-format-{FORMAT_VERSION}.json"] = to_json(UNIT_EXAMPLE)
    files[FOLDER / f"unit-format-{FORMAT_VERSION}.xml"] = to_xml(UNIT_EXAMPLE)
    missing = [file for file in files if not file.exists()]
    for file in missing:
        file.write_bytes(files[file])
    return missing


if __name__ == "__main__":
    print(json.dumps([file.name for file in write_missing()]))
