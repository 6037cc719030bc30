"""Maintainers: resolve the coordinates of `uow/jvm/jars.toml` with jgo and write `uow/jvm/jars.lock`.

jgo resolves well and does not enforce sums, so it makes the lock from an empty scratch folder, and `uow.jvm.jars` fetches.
"""

import hashlib
import json
import os
import sys
import tempfile
import tomllib
from pathlib import Path
from unittest.mock import patch

from jgo.env import EnvironmentBuilder, EnvironmentSpec, LinkStrategy
from jgo.maven import POM, MavenContext, Model

from uow.jvm.jars import LOCK, Jar

_merge = Model._merge


def merge_with_parent(model: Model, pom: POM) -> None:
    """jgo's own, and `${project.parent.version}`, which jgo 3.2 does not know: a part of Amazon's SDK names its BOM by it."""
    _merge(model, pom)
    parent = pom.value("parent/version")
    if parent:
        model._merge_props({"project.parent.version": parent})


def resolve(name: str, wanted: dict[str, list[str]], scratch: Path) -> list[Jar]:
    """The jars of one set: everything that the coordinates need at run time, or only those of them that `keep` names."""
    spec, repository = scratch / f"{name}.toml", scratch / "m2"
    coordinates = json.dumps(wanted["coordinates"])
    spec.write_text(f'[environment]\nname = "{name}"\n[dependencies]\ncoordinates = {coordinates}\n')
    mirror = os.environ.get("UOW_MAVEN_REPOSITORY")
    remotes = {"central": mirror.rstrip("/")} if mirror else None
    context = MavenContext(repo_cache=repository, remote_repos=remotes)
    builder = EnvironmentBuilder(context=context, link_strategy=LinkStrategy.HARD, cache_dir=scratch / name)
    jars = []
    for path in builder.from_spec(EnvironmentSpec.load(spec), update=True).all_jars:
        stored = next(repository.rglob(path.name))
        *group, artifact, version, _file = stored.relative_to(repository).parts
        if path.name != f"{artifact}-{version}.jar":
            sys.exit(f"{path.name}: classifiers are not provided for in the lock")
        if not wanted.get("keep") or artifact in wanted["keep"]:
            data = stored.read_bytes()
            coordinate = f"{'.'.join(group)}:{artifact}:{version}"
            jars.append(Jar(name, coordinate, len(data), hashlib.sha256(data).hexdigest()))
    return jars


def main() -> None:
    """Write the lock."""
    with tempfile.TemporaryDirectory() as folder, patch.object(Model, "_merge", merge_with_parent):
        sets = tomllib.loads(LOCK.with_name("jars.toml").read_text())
        jars = {jar for name, wanted in sets.items() for jar in resolve(name, wanted, Path(folder))}
    lines = sorted(f"{jar.set} {jar.coordinate} {jar.size} {jar.sha256}\n" for jar in jars)
    LOCK.write_text("".join(lines))
    print(f"{len(lines)} jars in {LOCK.name}")


if __name__ == "__main__":
    main()
