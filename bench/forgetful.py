"""Comparison (c): the worker without changelog and ledger: `python -m bench.forgetful UOW_TOML`.

Everything else is as in `uow worker`: poll, groups, units, the transaction with its positions. The difference to the default worker is the price of
surviving a restart. Only for this benchmark: when it is killed, all open groups are lost.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from unittest.mock import patch

from uow.config.loading import load
from uow.processor.core.group import Group
from uow.processor.core.happened import HeldRow
from uow.processor.engine import restore
from uow.processor.engine.ports import Plan
from uow.processor.engine.task import PartitionTask
from uow.processor.shell.worker import run_worker


class ForgetfulTask(PartitionTask):
    """Makes neither rows nor ledger records."""

    def _promote(
        self,
        held: Sequence[HeldRow],
        promoted: Iterable[Group],
        rows: list[tuple[bytes, bytes | None]],
        amended: Container[Group] = (),
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
