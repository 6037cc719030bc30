"""The files that an audit leaves: no Spark and no broker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from uow.spark_sink.audit_state import KEPT_S, AuditState, StateFolder, Unusable


def state_in(folder: Path) -> AuditState:
    return AuditState(
        "settings", 5, {0: 1}, {0: 9}, {"d.units": {"0": 4}}, {0: 2}, {"units": ["a.parquet"]}, folder.name
    )


def leave(store: StateFolder) -> AuditState:
    """An audit ends."""
    folder = store.begin()
    (folder / "0.avro").write_bytes(b"state")
    (folder / "residue").mkdir()
    (folder / "residue" / "part.parquet").write_bytes(b"rest")
    state = state_in(folder)
    store.finish(state)
    return state


def test_the_last_audit_to_end_counts_and_earlier_files_stay_for_those_that_read_them(tmp_path: Path) -> None:
    store = StateFolder(tmp_path / "d")
    first, second = leave(store), leave(store)
    found = store.load("settings")
    assert (found.folder, found.ends, found.done) == (second.folder, {0: 9}, {"units": ["a.parquet"]})
    folder = store.folder / first.folder
    assert folder.exists()
    os.utime(folder, (0, folder.stat().st_mtime - KEPT_S - 9))
    leave(store)
    assert not folder.exists()


def damage(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "latest.json"
        data = json.loads(path.read_text("utf-8"))
        change(data)
        path.write_text(json.dumps(data), "utf-8")

    return apply


def cut(folder: Path) -> None:
    [path] = folder.glob("*/residue/*")
    path.write_bytes(b"res")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "latest.json").unlink(), "no audit"),
        (lambda folder: (folder / "latest.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "latest.json").write_text("[]"), "cannot be read"),
        (damage(lambda data: data.update(format=2)), "another version"),
        (damage(lambda data: data.update(settings="x")), "have changed"),
        (damage(lambda data: data.update(ends={"a": "b"})), "cannot be read"),
        (damage(lambda data: data.update(folder="../elsewhere")), "damaged"),
        (cut, "damaged"),
        (lambda folder: next(folder.glob("*/0.avro")).unlink(), "damaged"),
    ],
)
def test_a_state_that_is_missing_of_another_kind_or_damaged_is_not_used(
    tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    store = StateFolder(tmp_path / "d")
    leave(store)
    store.load("settings")
    change(store.folder)
    with pytest.raises(Unusable, match=why):
        store.load("settings")
