"""Hooks of the build: files that git does not know stay out, and the package's page has no link that leads nowhere.

The project has no public address yet. `UOW_PROJECT_URL` (`make dist PROJECT_URL=https://...`) names it when a release is built: it gives the project's
URLs, and README's relative links become absolute ones of the release's tag. Without it they become text with the path.

Belongs here: what only a build needs. Does not belong here: everything that `pyproject.toml` can say by itself (docs/decisions/0111-what-a-release-says.md).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ADDRESS = "UOW_PROJECT_URL"
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)([^)\s]*)\)")
_SPECIAL = re.compile(r"([\\*?\[\]!# ])")


class Pages(MetadataHookInterface):
    """The long description, and the addresses of the project where it has one."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets `readme`, and `urls`, which are none without an address. An unpacked sdist has its own already."""
        if "readme" in metadata:
            metadata.setdefault("urls", {})
            return
        address, tag = os.environ.get(ADDRESS, "").rstrip("/"), f"v{metadata['version']}"
        if address and not re.fullmatch(r"https://[\w.-]+\.\w+(:\d+)?(/[\w.~-]+)+", address):
            raise ValueError(f"{ADDRESS} is the https:// address of the project's repository, not {address!r}")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text, address, tag)}
        urls = {
            "Source": address,
            "Documentation": f"{address}/tree/{tag}/docs",
            "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{address}/issues",
        }
        metadata["urls"] = urls if address else {}


def description(text: str, address: str, tag: str) -> str:
    """A Markdown page whose links also work away from the repository: those to its files lead to the address, or are no links without one."""

    def told(link: re.Match[str]) -> str:
        words, (path, _, anchor) = link[1], link[2].partition("#")
        if address:
            kind = "tree" if path.endswith("/") else "blob"
            return f"[{words}]({address}/{kind}/{tag}/{path or 'README.md'}{anchor and '#'}{anchor})"
        return words if not path or words.strip("`") == path else f"{words} (`{path}`)"

    parts = _FENCE.split(text)  # what stands in a fence is no link
    parts[::2] = (_LINK.sub(told, part) for part in parts[::2])
    return "".join(parts)


class TrackedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Leaves out what git does not track, ignored or not. hatchling leaves out what `.gitignore` names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds to `exclude`, before hatchling looks for files. An unpacked sdist has no `.git`; an editable install copies nothing."""
        if version == "editable" or not (Path(self.root) / ".git").exists():
            return
        others = ["git", "ls-files", "--others", "--directory", "-z"]
        try:
            listed = subprocess.run(others, cwd=self.root, capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", b"") or str(error).encode()
            raise RuntimeError(f"git cannot list the files of {self.root}: {os.fsdecode(told).strip()}") from error
        excluded = self.build_config.build_config.setdefault("exclude", [])
        excluded += [_SPECIAL.sub(r"\\\1", f"/{os.fsdecode(path)}") for path in listed.split(b"\0") if path]
