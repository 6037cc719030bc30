"""Faust has a compiled stream and a plain one, and they differ: the whole worker runs on both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import stretched

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def test_this_process_runs_the_stream_it_was_asked_for() -> None:
    from faust import streams

    compiled = streams._CStreamIterator is not None  # type: ignore[attr-defined]
    assert compiled != bool(os.environ.get("NO_CYTHON"))


@pytest.mark.slow
@pytest.mark.skipif(bool(os.environ.get("NO_CYTHON")), reason="this is the run on the plain stream")
def test_whole_worker_runs_on_the_plain_stream_as_well() -> None:
    tests = [HERE / "test_whole_worker.py", f"{__file__}::test_this_process_runs_the_stream_it_was_asked_for"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *map(str, tests)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_CYTHON": "1"}, capture_output=True, text=True, timeout=stretched(110)
    )
    assert done.returncode == 0, done.stdout[-3000:]
