"""Comparison (c): the worker that keeps nothing, no changelog and no ledger: `python -m bench.forgetful UOW_TOML`.

All the rest is `uow worker`: poll, groups, units, the transaction with its positions. What the default worker costs beyond it is the price of
surviving a restart. For the bench alone: killed, it loses whatever is open.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest.mock import patch

from processor.core.group import Group
from processor.core.partition import HeldRow
from processor.engine import restore
from processor.engine.ports import Plan
from processor.engine.task import PartitionTask
from processor.shell.worker import run_worker
from uow.config import load


class ForgetfulTask(PartitionTask):
    """Makes neither rows nor ledger records."""

    def _promote(
        self, held: Sequence[HeldRow], promoted: Iterable[Group], rows: list[tuple[bytes, bytes | None]]
    ) -> None:
        pass

    def _ledger(self, *what: object) -> bytes:
        return b""

    def _plan(self, promoted: Iterable[Group] = ()) -> Plan:
        plan = super()._plan(promoted)
        plan.changelog, plan.ledger = [], None
        return plan


def main(config: str) -> int:
    """Runs it; the exit status."""
    with patch.object(restore, "PartitionTask", ForgetfulTask):
        return run_worker(load(Path(config), {}).worker("bench"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
