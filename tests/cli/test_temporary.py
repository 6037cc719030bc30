"""Names of temporary destinations, and what `uow doctor` makes of them (R-10)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from uow.ops.doctor import LONG_MS, left_temporary
from uow.topics.temporary import Owner, is_temporary, owner_of, temporary_name

ID = "0123456789abcdef" * 2
NOW = 1_000_000_000


@pytest.mark.parametrize("host", ["h", "a.b-c", "häst_1/x", "h" * 300, ""])
def test_a_name_says_who_made_it_and_can_be_a_topic(host: str) -> None:
    name = temporary_name(Owner(NOW, 7, host), ID, 3)
    assert len(name) <= 249
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")
    found = owner_of(name)
    assert found is not None
    assert found[:2] == (NOW, 7)
    assert is_temporary(name)


@pytest.mark.parametrize("topic", ["d.units", "uow-temporary.x", f"uow-temporary.1.99999999999.{ID}-1.h"])
def test_what_is_named_otherwise_has_no_owner(topic: str) -> None:
    assert owner_of(topic) is None


def test_doctor_names_what_dead_owners_left_and_nothing_else() -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    here, gone = socket.gethostname(), int(dead.stdout)

    def name(pid: int, host: str, age_ms: int) -> str:
        return temporary_name(Owner(NOW - age_ms, pid, host), ID, 0)

    left, old = name(gone, here, 60_000), name(1, "elsewhere", LONG_MS + 1)
    quiet = [name(os.getpid(), here, 2 * LONG_MS), name(1, "elsewhere", LONG_MS), "d.units"]
    findings = {finding.what.split(",")[0]: finding for finding in left_temporary([left, old, *quiet], NOW)}
    assert findings.keys() == {left, old}
    assert f"its owner, process {gone} of" in findings[left].what
    assert findings[left].remedy == f"`kafka-topics --delete --topic {left}`"
