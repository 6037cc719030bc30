"""Hypothesis strategies for every record on the wire: arbitrary bytes, nulls, repeated headers, extreme numbers."""

from __future__ import annotations

from hypothesis import strategies as st

from uow.schemas.records import (
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
    OffsetRange,
    Outcome,
    Range,
    Reason,
    Record,
    Reference,
    ReferenceRow,
    SettingsRow,
    Source,
    Unit,
    UnitOutcome,
)

ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 63, 64, 8191, 8192])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
optional_bytes = st.none() | st.binary(max_size=300)
outcomes = st.sampled_from(UnitOutcome)
reasons = st.sampled_from(Reason)
ranges = st.lists(st.builds(Range, ints, ints), max_size=4).map(tuple)

names = st.sampled_from(["uow-id", "uow-seq", "trace", ""]) | texts
headers = st.lists(st.tuples(names, optional_bytes), max_size=6).map(tuple)

components = st.builds(
    ComponentRecord,
    seq=ints,
    end=st.booleans(),
    component_id=st.none() | texts,
    key=optional_bytes,
    value=optional_bytes,
    headers=headers,
    timestamp=longs,
    source=st.builds(Source, texts, ints, longs),
    reference=st.none() | st.builds(Reference, longs, longs),
)
units = st.builds(
    Unit,
    id=texts,
    unit_id=texts,
    destination=texts,
    generation=longs,
    outcome=outcomes,
    reason=reasons,
    opened_at=longs,
    closed_at=longs,
    expires_at=st.none() | longs,
    count=ints,
    bytes=longs,
    missing=ranges,
    components=st.lists(components, max_size=5).map(tuple),
)
outcome_records = st.builds(
    Outcome,
    id=texts,
    unit_id=texts,
    destination=texts,
    generation=longs,
    outcome=outcomes,
    reason=reasons,
    opened_at=longs,
    closed_at=longs,
    count=ints,
    bytes=longs,
    missing=ranges,
    rule=st.none() | texts,
    command_id=st.none() | texts,
    last_arrived=st.none() | st.builds(LastArrived, ints, st.none() | texts),
)
answers = st.builds(Answer, texts, texts, texts, texts, st.booleans(), texts, texts, st.none() | texts, longs)
warnings = st.builds(
    DeadlineWarning,
    texts,
    texts,
    longs,
    longs,
    longs,
    longs,
    reasons,
    ints,
    ranges,
    st.lists(texts, max_size=3).map(tuple),
    st.none() | texts,
)
attributes = st.builds(Attributes, longs, longs, ints)
changelog_rows = st.builds(
    ChangelogRow, longs, longs, longs, st.booleans(), st.none() | attributes, st.binary(max_size=300)
)
reference_rows = st.builds(
    ReferenceRow, longs, longs, longs, st.booleans(), st.none() | attributes, st.binary(max_size=300)
)
settings_rows = st.builds(SettingsRow, st.lists(st.tuples(texts, texts), max_size=4).map(tuple))
group_rows = st.builds(
    GroupRow,
    longs,
    longs,
    st.none() | ints,
    ranges,
    st.none() | longs,
    longs,
    deadlines=st.lists(longs, max_size=4).map(tuple),
    has_turn=st.booleans(),
)
closed_groups = st.builds(
    ClosedGroup, st.binary(max_size=255), longs, outcomes, reasons, ints, longs, longs, st.binary(max_size=20)
)
ledgers = st.builds(
    LedgerRecord,
    layout=ints,
    from_offset=longs,
    to_offset=longs,
    floor=longs,
    clock=longs,
    reader=ints,
    not_held=st.lists(st.builds(OffsetRange, longs, longs), max_size=4).map(tuple),
    closed=st.lists(closed_groups, max_size=4).map(tuple),
    commands=st.lists(st.builds(DecidedCommand, st.binary(max_size=255), longs), max_size=4).map(tuple),
)

records: st.SearchStrategy[Record] = st.one_of(
    components,
    units,
    outcome_records,
    answers,
    warnings,
    changelog_rows,
    reference_rows,
    group_rows,
    settings_rows,
    ledgers,
)
