"""`python defective.py DEFECT -c FILE --name NAME`: a worker with a planted defect, for proof that the checker sees it.

Belongs here: subclasses of the worker's ports that do one thing wrong. The product knows nothing of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import uow.processor.kafka.transactional_producer as transactional_producer
import uow.processor.shell.app as app
from uow.processor.engine.ports import Plan, Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.doubt import Suspicion
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.worker_clock import WorkerClock
from uow.processor.kafka.worker_settings import WorkerSettings


class Spoiled(KafkaSink):
    """Does something to the plans before they are written."""

    turns = itertools.count(1)

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        for plan in plans:
            self.spoil(plan, next(self.turns))
        super().write(plans, token)

    def spoil(self, plan: Plan, turn: int) -> None:
        raise NotImplementedError


class OffsetsWithoutOutputs(Spoiled):
    """Now and then only the positions move."""

    def spoil(self, plan: Plan, turn: int) -> None:
        if not turn % 7:
            plan.outputs.clear()


class NoLedger(Spoiled):
    """Closed groups are forgotten by the next restore."""

    def spoil(self, plan: Plan, turn: int) -> None:
        plan.ledger = None


class NoTombstones(Spoiled):
    """Closed groups come back with the next restore."""

    def spoil(self, plan: Plan, turn: int) -> None:
        plan.changelog = [row for row in plan.changelog if row[1] is not None]


class DoubledOutputs(Spoiled):
    """Now and then an output is written twice, as by a producer that sends again outside the transaction."""

    def spoil(self, plan: Plan, turn: int) -> None:
        if not turn % 7:
            plan.outputs += plan.outputs[:1]


class ImpatientReader(KafkaLogReader):
    """Takes a changelog for read before it is: no barrier."""

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        found = super().bounds(tps)
        return {
            tp: (first, first + (end - first) // 2 if tp.topic.endswith("-groups-changelog") else end)
            for tp, (first, end) in found.items()
        }


class CredulousClock(WorkerClock):
    """Believes the wall clock, wherever somebody puts it."""

    def _believed(self) -> int:
        return self._wall()


class Trusting(Suspicion):
    """Takes what librdkafka says for all there is, also after it has begun to keep lines back."""

    def on_line(self, line: str) -> None:
        super().on_line(line)
        self.is_deaf = False


class SilentClients(Clients):
    """Breaks of connections are not logged: somebody did not want to see them."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(replace(settings, kafka={**settings.kafka, "log.connection.close": "false"}))


def _sink(kind: type[KafkaSink]) -> Callable[[], None]:
    return lambda: setattr(app, "KafkaSink", kind)


DEFECTS: dict[str, Callable[[], None]] = {
    "offsets-without-outputs": _sink(OffsetsWithoutOutputs),
    "no-ledger": _sink(NoLedger),
    "no-tombstones": _sink(NoTombstones),
    "doubled-outputs": _sink(DoubledOutputs),
    "suppressed-lines": lambda: setattr(transactional_producer, "Suspicion", Trusting),
    "silent-connections": lambda: setattr(app, "Clients", SilentClients),
    "credulous-clock": lambda: setattr(app, "WorkerClock", CredulousClock),
    "restore-without-barrier": lambda: setattr(app, "KafkaLogReader", ImpatientReader),
}


if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    from uow.cli.worker_command import command

    command()
