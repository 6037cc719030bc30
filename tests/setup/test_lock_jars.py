"""`tools/lock_jars.py`: parts of POMs that jgo leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from jgo.maven import POM, MavenContext, Model

from tools import lock_jars

PARENT = "<project><groupId>a</groupId><artifactId>parent</artifactId><version>2.5</version><packaging>pom</packaging></project>"
CHILD = """<project><parent><groupId>a</groupId><artifactId>parent</artifactId><version>2.5</version></parent><artifactId>child</artifactId>
<properties><sdk>${project.parent.version}</sdk></properties>
<dependencies><dependency><groupId>a</groupId><artifactId>core</artifactId><version>${sdk}</version></dependency></dependencies></project>"""


def test_a_version_may_be_that_of_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "a" / "parent" / "2.5" / "parent-2.5.pom"
    stored.parent.mkdir(parents=True)
    stored.write_text(PARENT)
    child = tmp_path / "child.pom"
    child.write_text(CHILD)
    monkeypatch.setattr(Model, "_merge", lock_jars.merge_with_parent)
    [core] = Model(POM(child), MavenContext(repo_cache=tmp_path)).deps.values()
    assert core.version == "2.5"
