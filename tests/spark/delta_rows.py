"""The rows of a Delta table by its log and its files, read by nothing of what wrote them: no Spark, whose query over a few rows takes half a second of CPU time."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyarrow import parquet
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DataType, StructType

from uow.spark_sink.tables import Table, columns


def table_rows(folder: Path) -> list[Row]:
    """All rows, as Spark would give them: columns that are later than a file are null in it, times are UTC without saying so."""
    files: set[str] = set()
    kind = None
    logs = folder / "_delta_log"
    checkpoints = sorted(logs.glob("*.checkpoint.parquet"))
    actions = [action for path in checkpoints[-1:] for action in parquet.read_table(path).to_pylist()]
    first = checkpoints[-1].name.partition(".")[0] if checkpoints else ""
    for commit in sorted(logs.glob("[0-9]*.json")):
        if commit.stem > first:
            actions += map(json.loads, commit.read_text().splitlines())
    for action in actions:
        if added := action.get("add"):
            assert not added.get("deletionVector")
            files.add(added["path"])
        elif removed := action.get("remove"):
            files.discard(removed["path"])
        elif made := action.get("metaData"):
            kind = StructType.fromJson(json.loads(made["schemaString"]))
    assert kind is not None, f"{folder} is no table"
    found = [row for file in sorted(files) for row in parquet.read_table(folder / unquote(file)).to_pylist()]
    return [_as_spark(row, kind) for row in found]


def nested_components(units: list[Row]) -> list[Row]:
    """Components in rows of `units`, as rows of `components`."""
    made = Row(*columns(Table.COMPONENTS).names)
    return [
        made(
            *(unit.unit_id, unit.id, unit.generation, position, each.seq or None, each.end, each.component_id),
            *(each.key, each.value, each.headers, each.timestamp, *each.source),
            *(unit.topic, unit.partition, unit.offset, unit.superseded_by),
        )
        for unit in units
        for position, each in enumerate(unit.asDict().get("components") or (), 1)
    ]


def _as_spark(value: Any, kind: DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, StructType):
        return Row(*kind.names)(*(_as_spark(value.get(each.name), each.dataType) for each in kind.fields))
    if isinstance(kind, ArrayType):
        return [_as_spark(each, kind.elementType) for each in value]
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
