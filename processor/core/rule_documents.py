"""Documents of units by rule: XML and JSON by the settings of a row (B-53, B-55, B-108). Pure.

The worker writes them, and the audit makes them again to compare.

Belongs here: what a row says of them. Does not belong here: the documents (`uow.schemas.aggregates`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from uow.processor.core.gathered import Called, source_of
from uow.processor.core.virtual_message import collection_name
from uow.schemas import aggregates
from uow.schemas.records import ComponentRecord, Unit
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import Routed, routed_of
from uow.topics.manifests import by_folder, open_folders, read_manifest
from uow.topics.policies import ValueFormat

Document = Callable[[Unit, Called | None], bytes]
"""Writes a unit, and the manifest of its replies, as a document."""


def rule_formats(row: GroupPolicy) -> Mapping[ValueFormat, Document]:
    """How a unit of this row becomes its document, by the value formats that have one (B-53, B-55)."""

    def name_of(unit: Unit) -> str:
        return collection_name(row.name_template or "*", unit.id.partition("/")[2].encode()).decode()

    def as_json(unit: Unit, called: Called | None) -> bytes:
        name = name_of(unit) if row.sources else None
        more = {} if called is None else _gathered(unit, called)
        return aggregates.aggregate_json(unit, row.rule, map(_origin, unit.components), name, more)

    def as_xml(unit: Unit, called: Called | None) -> bytes:
        if called is not None:
            manifest = read_manifest(called.text)
            return aggregates.replies_xml(manifest.name, manifest.folders, unit.components)
        if not row.sources:
            return aggregates.aggregation_xml(unit.components)
        named = [(source_of(each.headers), each) for each in unit.components]
        return aggregates.collection_xml(name_of(unit), named)

    return {ValueFormat.JSON: as_json, ValueFormat.XML: as_xml}


def _gathered(unit: Unit, called: Called) -> dict[str, Any]:
    """The part of a document that tells which reply is in which folder (B-78, B-83)."""
    manifest, numbers = read_manifest(called.text), [each.seq for each in unit.components]
    return {
        "name": manifest.name,
        "folders": by_folder(manifest.folders, numbers),
        "missing_folders": open_folders(manifest.folders, numbers),
    }


def _origin(component: ComponentRecord) -> dict[str, Any]:
    read = routed_of(component.headers)
    routed = read if isinstance(read, Routed) else Routed("")
    came_in = (routed.input or b"").decode()
    return {
        "source_name": source_of(component.headers) or None,
        "input": came_in or None,
        "arrived_at": component.timestamp if routed.arrived_at is None else routed.arrived_at,
    }
