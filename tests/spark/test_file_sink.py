"""Units as files: each once, whatever happens between two steps of a batch (B-03, B-213)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.spark.stage import PARTITIONS, Stage, c, plain
from tests.spark.test_hostile_records import KIND, unit
from tests.spark.test_lineage import create_again, deliver
from uow.schemas import formats
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import Unit
from uow.spark_sink import file_sink, unit_files
from uow.spark_sink.file_sink import FileBatch, FileSink, write_again
from uow.spark_sink.lineage import NOTE
from uow.spark_sink.unit_files import FileFormat
from uow.topics.partitioner import partition_for
from uow.topics.policies import Shape

PARTITION = partition_for(b"one", PARTITIONS)
OTHER = next(name for name in map("two-{}".format, range(99)) if partition_for(name.encode(), PARTITIONS) == PARTITION)
"""Of the same partition as `one`, and behind it there."""

pytestmark = pytest.mark.timeout(600)


def sinking(stage: Stage, root: Path, kind: FileFormat = FileFormat.XML) -> FileSink:
    return FileSink(stage.spark, stage.cluster, stage.names, root, kind, stage.policy.routes, stage.rules)


def sink(stage: Stage, root: Path, kind: FileFormat = FileFormat.XML) -> None:
    sinking(stage, root, kind).start(once=True).awaitTermination()


def files(root: Path) -> dict[str, bytes]:
    """All that a supplier sees, by path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not {"_sink", "_problems"} & {*path.parts}
    }


def check_digests(folder: Path) -> None:
    manifests = [str(path.relative_to(folder)) for path in folder.glob("manifest/*")]
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", *manifests], cwd=folder, check=True)


def listed(root: Path) -> list[str]:
    """The paths in the manifests, in their order."""
    return [line.split()[1] for path in sorted(root.rglob("*.sha256")) for line in path.read_text().splitlines()]


def problems(root: Path) -> list[tuple[str | None, str]]:
    lines = [line for path in sorted(root.rglob("_problems/*")) for line in path.read_text().splitlines()]
    return [(said["unit_id"], said["reason"]) for said in map(json.loads, lines)]


def units(root: Path) -> dict[str, Unit]:
    """The units in XML files, by group id."""
    return {
        made.id: made
        for name, data in files(root).items()
        if name.endswith(".xml") and (made := formats.from_xml(data))
    }


def cut_off(*arguments: Any) -> None:
    raise RuntimeError("cut off")


def test_each_unit_is_one_file_whatever_happens_between_two_steps_b03_b213(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, topic = tmp_path / "files", stage.names.units
    stage.send(
        [c("jill", 1, value=b"\x00\xff"), c("jill", 2, end=True), c("bob", 1, end=True), plain("letter"), c("bad", 0)]
    )
    stage.work()
    name = stage.names.destination
    hostile = ("../../../escaped", "A", "a", "x" * 300, "con", "")
    for number, unit_id in enumerate(hostile):
        made = formats.to_json(unit(name, id=f"odd-{number}", unit_id=unit_id))
        stage.put(topic, b"x", made, KIND, number % 2)
    stage.put(topic, b"x", b"no unit", KIND)
    stage.put(topic, b"x", formats.to_json(unit("elsewhere")), KIND)

    for module, step in ((unit_files, "_append"), (FileBatch, "_tell")):
        with monkeypatch.context() as patched:
            patched.setattr(module, step, cut_off)
            with pytest.raises(Exception, match="cut off"):
                sink(stage, root)
        assert (listed(root) == []) == (step != "_tell")
    before, before_listed = files(root), listed(root)
    assert len([path for path in before if path.endswith(".xml")]) == 2 + len(hostile)
    assert {*units(root)} == {"jill", "bob", *(f"odd-{n}" for n in range(len(hostile)))}
    assert [part.value for part in units(root)["jill"].components] == [b"\x00\xff", b"v"]
    assert len(listed(root)) == len({*listed(root)}) == sinking(stage, root).count() == 2 + len(hostile)
    [folder] = [path for path in (root / unit_files.file_name(name)).iterdir() if path.name[0] != "_"]
    check_digests(folder)

    # the supplier takes its files, the checkpoint is lost, and a unit comes again, with the same and with other content
    taken, jill = {*folder.glob("*/*.xml")}, units(root)["jill"].unit_id
    for path in taken:
        path.unlink()
    shutil.rmtree(file_sink.checkpoint_of(root, name))
    stage.put(topic, b"x", formats.to_json(unit(name, id="odd-1", unit_id="A")), KIND, 1)
    stage.put(topic, b"x", formats.to_json(unit(name, id="changed", unit_id="A")), KIND, 1)
    sink(stage, root)
    assert (listed(root), [path for path in taken if path.exists()]) == (before_listed, [])
    assert [*sinking(stage, root).temporary.iterdir()] == []
    assert sorted((who, why[:40]) for who, why in problems(root) if who) == [
        ("A", "this unit has its file already, with oth")
    ]
    assert ["neither Avro" in why for who, why in problems(root) if who is None] == [True]

    # two are wanted again, one of which was changed; and one that never was
    [of_a] = (path for path in taken if path.stem == "%41")
    of_a.write_bytes(b"damaged")
    with pytest.raises(StateCorruptedError, match=r"no manifest lists unit nobody;"):
        write_again([sinking(stage, root, FileFormat.AVRO)], [jill, "A", "nobody"])
    assert {*units(root)} == {"jill", "odd-1"}
    assert {path: data for path, data in before.items() if path in files(root)} == files(root)
    assert listed(root) == before_listed


def test_a_checkpoint_of_another_topic_is_refused_with_the_way_out_and_no_unit_lacks_its_file_b213(
    stage: Stage, tmp_path: Path
) -> None:
    """Positions of a topic mean nothing in another one of its name: units below them would have no file, and nobody would say so."""
    root, checkpoint = tmp_path / "files", file_sink.checkpoint_of(tmp_path / "files", stage.names.destination)
    deliver(stage, *(f"before-{number}" for number in range(6)))
    sink(stage, root)
    create_again(stage, stage.names.units)
    deliver(stage, *(f"behind-{number}" for number in range(12)))
    with pytest.raises(
        StateCorruptedError, match=f"another topic {stage.names.units}: .*remove the folder {checkpoint}"
    ):
        sink(stage, root)
    note = checkpoint / NOTE
    known = note.read_text()
    note.write_text("")  # a disk was full
    with pytest.raises(StateCorruptedError, match=f"{NOTE} that cannot be read"):
        sink(stage, root)
    assert stage.names.units in json.loads(known)["topics"]

    shutil.rmtree(checkpoint)  # as the message says
    sink(stage, root)
    names = {*(f"before-{number}" for number in range(6)), *(f"behind-{number}" for number in range(12))}
    assert {*units(root)} == names
    assert len(listed(root)) == len(names)

    note.unlink()  # as the first releases left it
    create_again(stage, stage.names.units)
    with pytest.raises(StateCorruptedError, match=r"is of another log: .* and was read up to"):
        sink(stage, root)


def test_units_of_other_shapes_are_files_though_batches_cut_them_w116_w117(
    make_stage: Callable[..., Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight records in a batch, which cuts the second run of five. One whose beginning retention has taken is told, and no file."""
    runs, references = make_stage(shape=Shape.CONSECUTIVE), make_stage(shape=Shape.REFERENCE)
    monkeypatch.setattr(file_sink, "batch_records", lambda backlog: 8)
    values = {name: [f"{name} {n}".encode() for n in (1, 2, 3, 4, 5)] for name in ("one", OTHER)}
    for stage in (runs, references):
        for name, each in values.items():
            stage.send([c(name, n, end=n == 5, value=value, shop="s") for n, value in enumerate(each, 1)])
            stage.work()
        root = tmp_path / stage.names.destination
        sink(stage, root)
        found = units(root)
        assert {name: [part.value for part in made.components] for name, made in found.items()} == values
        assert {(made.count, made.closed_at > made.opened_at > 0) for made in found.values()} == {(5, True)}
        assert problems(root) == []
        parts = found["one"].components
        assert [(part.seq, part.end, part.reference, part.source.offset) for part in parts] == [
            (n, n == 5, None, n - 1) for n in (1, 2, 3, 4, 5)
        ]
        assert all(("shop", b"s") in part.headers for part in parts)
        before = files(root)
        (root / next(path for path in before if found["one"].unit_id in path)).unlink()
        write_again([sinking(stage, root)], [found["one"].unit_id])
        assert files(root) == before

    admin = AdminClient({"bootstrap.servers": runs.servers})
    for done in admin.delete_records([TopicPartition(runs.names.units, PARTITION, 8)]).values():
        done.result(20)
    with pytest.raises(StateCorruptedError, match=r"no record in the topic gives the listed content of .*xml;"):
        write_again(
            [sinking(runs, tmp_path / runs.names.destination)],
            [units(tmp_path / runs.names.destination)["one"].unit_id],
        )
    root = tmp_path / "later"
    sink(runs, root)
    assert (files(root), [why for _, why in problems(root)]) == (
        {},
        ["records of it are missing before this one, its last"],
    )
