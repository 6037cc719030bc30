"""Processes of one kind in a run, workers or routers: who lives, and the faults that befall one.

Belongs here: their supervision. Does not belong here: what they run (`simulation`, `simulated_routers`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from uow.processor.sim.schedule import Actor

if TYPE_CHECKING:
    from uow.processor.sim.simulation import Simulation

MOST = 5
"""Processes that live at a time."""


class Lived(Protocol):
    """One process.

    Attributes:
        worker_name: The name that it has in common with those before and after it.
        actor: Runs it.
        stop: Set when it is asked to end.
    """

    worker_name: str
    actor: Actor
    stop: threading.Event


L = TypeVar("L", bound=Lived)


class Processes(Generic[L]):
    """Those of one kind.

    Args:
        run: The run.
        names: Of the workers.
        mark: First letter of their names in the script.
        make: Makes one, by worker name and name in the script.
    """

    def __init__(self, run: Simulation, names: Sequence[str], mark: str, make: Callable[[str, str], L]) -> None:
        self._run, self._names, self._mark, self._make = run, names, mark, make
        self._lives: list[L] = []
        self._started = 0

    def start_all(self) -> None:
        """One of each name."""
        for worker_name in self._names:
            self._start(worker_name)

    def _start(self, worker_name: str) -> None:
        self._started += 1
        self._lives.append(self._make(worker_name, f"{self._mark}{worker_name}.{self._started}"))

    def living(self) -> list[L]:
        """Those that are alive."""
        self._lives = [life for life in self._lives if life.actor.alive]
        return self._lives

    def _some(self) -> L | None:
        living = self.living()
        return self._run.rnd.choice(living) if living else None

    def kill(self) -> None:
        """Kills one (kill -9)."""
        life = self._some()
        if life is not None:
            self._run.scheduler.say(f"kill -9 {life.actor.name}", "fault")
            self._run.report.crashes += 1
            life.actor.kill()

    def pause(self) -> None:
        """Stops one, see `Simulation.pause`."""
        life = self._some()
        if life is not None and life.actor.paused_at is None:
            self._run.pause(life.actor)

    def wake(self) -> None:
        """Wakes the first one that stands still."""
        for life in self.living():
            if life.actor.paused_at is not None:
                self._run.scheduler.say(f"SIGCONT {life.actor.name}", "fault")
                self._run.report.zombies += 1
                life.actor.paused_at = None
                return

    def restart(self) -> None:
        """Starts the first one that does not run."""
        if self._run.is_down:
            return
        running = {life.worker_name for life in self.living()}
        for worker_name in self._names:
            if worker_name not in running:
                self._start(worker_name)
                return

    def start_twice(self) -> None:
        """Starts one of a name that may be running."""
        if len(self.living()) < MOST and not self._run.is_down:
            self._start(self._run.rnd.choice(self._names))

    def stop(self) -> None:
        """Asks one to end (SIGTERM)."""
        life = self._some()
        if life is not None:
            self._run.scheduler.say(f"SIGTERM {life.actor.name}", "fault")
            life.stop.set()
