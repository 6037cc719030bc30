"""Names, contents and manifests of the files for suppliers."""

from __future__ import annotations

import io
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.schemas import codec, formats
from uow.schemas.records import ComponentRecord, Reason, Source, Unit, UnitOutcome
from uow.spark_sink.unit_files import FileFormat, Staged, UnitFolder, content, day_of, file_name, path_of, stage

HOSTILE = (
    *(
        "",
        ".",
        "..",
        "../../etc/passwd",
        "/",
        "a/b",
        "a\\b",
        "\0",
        "x" * 300,
        "x" * 301,
        "é",
        "e\u0301",
        "É",
        "ß",
        "SS",
        "ss",
    ),
    *(
        "CON",
        "con",
        "con.txt",
        "nul",
        "aux.",
        "COM1",
        "lpt9",
        "a.",
        "a",
        "A",
        "-rf",
        "~",
        "%",
        "%41",
        "%2e",
        "_sink",
        ".tmp",
        "\n",
        "*?",
    ),
    *("\U0001f600" * 80, "a:b", "a b", " a", "a "),
)


def unit(*values: bytes | None, content_type: bytes | None = None) -> Unit:
    headers = () if content_type is None else (("Content-Type", content_type),)
    parts = tuple(
        ComponentRecord(n, n == len(values), None, b"k", value, headers, 5, Source("d.components", 0, n))
        for n, value in enumerate(values, 1)
    )
    return Unit("x", "u", "d", 1, UnitOutcome.COMPLETE, Reason.END, 1, 2, None, len(parts), 3, (), parts)


def is_safe(name: str) -> bool:
    stem = name.split(".")[0]
    return (
        0 < len(name.encode()) < 240
        and name == name.lower()
        and name.isascii()
        and name.isprintable()
        and not {*name} & {*'/\\:*?"<>| '}
        and name[0] not in "-_."
        and name[-1] != "."
        and stem not in {"con", "prn", "aux", "nul", *(f"{device}{n}" for device in ("com", "lpt") for n in range(10))}
    )


def test_no_two_ids_share_a_file_and_every_name_is_safe_on_every_file_system_b03() -> None:
    names = {text: file_name(text) for text in HOSTILE}
    assert len({*names.values()}) == len(HOSTILE)
    assert [text for text, name in names.items() if not is_safe(name)] == []
    assert [text for text, name in names.items() if "~" not in name and unquote(name) != text] == []
    uuid = "0d1c5ef0-1b2c-5d3e-8f4a-5b6c7d8e9f00"
    assert path_of(uuid) == f"{path_of(uuid)[:2]}/{uuid}"


@given(st.text(), st.text())
def test_another_id_has_another_name_b03(one: str, other: str) -> None:
    assert is_safe(file_name(one))
    assert (file_name(one) == file_name(other)) == (one == other)


ANY_BYTES = (b"plain", None, b"", b"\xff\x00", b"a\x01b", "\ufffe".encode(), b"<a>&]]></a>", b"\r\n", b'{"a": 1}')


@pytest.mark.parametrize("kind", FileFormat)
def test_a_file_holds_the_unit_byte_for_byte_and_is_the_same_each_time_w95(kind: FileFormat) -> None:
    made = unit(*ANY_BYTES)
    data = content(made, kind)
    assert content(unit(*ANY_BYTES), kind) == data
    if kind is FileFormat.JSON:
        assert formats.from_json(data) == made
    elif kind is FileFormat.XML:
        assert ET.fromstring(data).tag == "unit"
        assert formats.from_xml(data) == made
    else:
        (row,) = fastavro.reader(io.BytesIO(data))
        assert [part["value"] for part in row["components"]] == [*ANY_BYTES]
        assert row["closed_at"].timestamp() == 0.002
    assert content(replace(made, unit_id="other"), kind) != data


def test_json_that_is_declared_is_embedded_as_it_is_and_other_bytes_stay_bytes() -> None:
    """A declaration may be wrong, and a parser would change numbers, and refuse a lone surrogate in the whole file."""
    sound = b'{"price": 1.10,\n "n": 12345678901234567890.0, "t": "\\u00e9"}'
    broken = (b"{", b"[NaN]", b"\xff", b"", None, b'"\\ud800"', b"[" * 100_000, b"\xef\xbb\xbf1")
    made = unit(sound, *broken, content_type=b"application/vnd.shop+json; charset=utf-8")
    data = content(made, FileFormat.JSON)
    assert b'"value":{"json":' + sound + b"}" in data
    first, *others = json.loads(data)["components"]
    assert first["value"]["json"]["t"] == "é"
    assert [formats._bytes_of_json(part["value"]) if part["value"] else None for part in others] == [*broken]
    for declared in (None, b"text/plain", b"application/jsonp", b"application/xml+json2"):
        data = content(unit(sound, content_type=declared), FileFormat.JSON)
        assert formats.from_json(data).components[0].value == sound


def staged(folder: Path, n: int) -> tuple[str, Staged]:
    made = replace(unit(b"%d" % n), unit_id=f"unit {n}")
    written = stage(content(made, FileFormat.AVRO), folder)
    return path_of(made.unit_id), Staged("t", 0, n, n, made.unit_id, day_of(made.closed_at), *written, ending="avro")


def test_a_manifest_line_that_was_cut_off_is_none_and_the_next_one_takes_its_place_b213(tmp_path: Path) -> None:
    folder, temporary = UnitFolder(tmp_path / "topic"), tmp_path / "temporary"
    temporary.mkdir()
    files = [staged(temporary, n) for n in range(40)]
    folder.publish(files[:20], temporary)
    (manifest,) = (folder.path / "manifest").iterdir()
    assert manifest.name == "1970-01-01.sha256"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + whole[:30])
    assert [line.path for line in folder.listed()] == [path for path, _ in files[:20]]
    folder.publish(files[20:], temporary)
    assert [line.path for line in folder.listed()] == [path for path, _ in files]
    assert [(line.ending, line.sha256) for line in folder.listed()] == [("avro", each.sha256) for _, each in files]
    assert [*temporary.iterdir()] == []
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "manifest/1970-01-01.sha256"], cwd=folder.path, check=True
    )
    (row,) = fastavro.reader(io.BytesIO((folder.path / f"{files[3][0]}.avro").read_bytes()))
    assert row == next(iter(fastavro.reader(io.BytesIO(codec.container(replace(unit(b"3"), unit_id="unit 3"))))))
