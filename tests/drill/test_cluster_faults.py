"""Faults of a broker that are done to a process which only writes files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from uow.prove.cluster_faults import TOO_LARGE, ClusterFaults

KAFKA = """
import sys
sys.stdin.read()
log, segment = sys.argv[1:]
try:
    for _ in range(1000):
        with open(segment, "ab") as file:
            file.write(bytes(4096))
except OSError as error:
    with open(log, "a") as file:
        file.write(f"java.io.IOException: {error.strerror}")
"""


class WritingBroker:
    """What a full disk needs of an embedded one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "server.log"
        segment = folder / "data" / "fresh.components-0" / "0.log"
        segment.parent.mkdir(parents=True)
        self.log.write_bytes(bytes(500_000))
        self._process = subprocess.Popen(
            [sys.executable, "-c", KAFKA, str(self.log), str(segment)], stdin=subprocess.PIPE
        )
        self.pid = self._process.pid

    @property
    def is_running(self) -> bool:
        assert self._process.stdin is not None
        self._process.stdin.close()  # by now the limit stands
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.wait()


def test_a_disk_that_is_full_early_has_room_for_the_line_that_says_so(tmp_path: Path) -> None:
    nothing: Any = None
    cluster_faults = ClusterFaults([], [], nothing, None, None, "fresh", nothing, nothing)
    broker: Any = WritingBroker(tmp_path)
    assert TOO_LARGE.decode() in cluster_faults._fill_disk(broker)
