"""A deterministic scheduler: one actor runs at a time, a seed says which.

Production code calls its ports from deep in its stack, so an actor must be able to stand still there while others go on. The standard
library has no coroutine with a stack of its own but the thread; so each actor is a thread that runs only while it holds the baton. The
scheduler hands it over and waits to get it back: there is no parallelism, no lock to win and no wall clock, and a seed plays the same
run every time.

Time is a number. It moves a little with every step, and jumps to the next time somebody waits for when nobody can go on.

Belongs here: actors, the baton, simulated time. Does not belong here: what actors do, and faults.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

Condition = Callable[[], bool]


class Crash(BaseException):
    """The process is gone (kill -9): unwinds its stack, nobody catches it."""


class Actor:
    """A process of the simulation.

    Attributes:
        name: In the script.
        alive: False once it crashed or ended.
        paused_at: When it was stopped (SIGSTOP), or None.
        silent_since: When it was stopped or died, or None.
    """

    def __init__(self, scheduler: Scheduler, name: str, body: Callable[[Actor], None]) -> None:
        self.name, self.alive = name, True
        self.paused_at: float | None = None
        self._died_at = 0.0
        self._scheduler, self._body = scheduler, body
        self._until: Condition | None = None
        self._deadline = 0.0
        self._go = threading.Lock()
        self._go.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self, until: Condition | None = None, timeout_ms: float | None = 0.0) -> None:
        """Gives the baton away until the condition holds or the time is over (None: no limit).

        Raises:
            Crash: It was killed meanwhile.
        """
        if not self.alive:
            raise Crash
        self._until = until
        self._deadline = self._scheduler.now + timeout_ms if timeout_ms is not None else float("inf")
        self._scheduler.baton.release()
        self._go.acquire()
        if not self.alive:
            raise Crash

    def kill(self) -> None:
        """Ends it where it stands."""
        if self.alive:
            self.alive = False
            self.paused_at = None
            self._died_at = self._scheduler.now
            self.resume()

    def resume(self) -> None:
        """Called by the scheduler: hands the baton over, returns when it is back."""
        self._go.release()
        self._scheduler.baton.acquire()

    def is_ready(self, now: float) -> bool:
        """Whether it can go on."""
        return self.paused_at is None and (now >= self._deadline or (self._until is not None and self._until()))

    @property
    def silent_since(self) -> float | None:
        return self.paused_at if self.alive else self._died_at

    @property
    def wakes_at(self) -> float:
        """When it goes on if nothing happens."""
        return self._deadline if self.paused_at is None else float("inf")

    def _run(self) -> None:
        self._go.acquire()
        try:
            if self.alive:
                self._body(self)
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - the thread's boundary; the run reports it
            self._scheduler.failures.append(error)
        finally:
            if self.alive:
                self.alive, self._died_at = False, self._scheduler.now
            self._scheduler.forget(self)
            self._scheduler.baton.release()


class Scheduler:
    """Actors, time, and the script of what happened.

    Args:
        rnd: Every choice of the run.

    Attributes:
        now: Milliseconds, since a beginning long ago.
        script: What happened, for people.
        failures: What ended an actor that should not have ended.
    """

    def __init__(self, rnd: Random) -> None:
        self.rnd, self.now = rnd, 1_000_000.0
        self.script: list[str] = []
        self.failures: list[BaseException] = []
        self.actors: list[Actor] = []
        self.baton = threading.Lock()
        self.baton.acquire()
        self._current = ""

    def say(self, text: str, who: str | None = None) -> None:
        """Adds a line to the script."""
        self.script.append(f"{self.now - 1_000_000:9.0f}  {who if who is not None else self._current:<9} {text}")

    def spawn(self, name: str, body: Callable[[Actor], None]) -> Actor:
        """A new actor; it runs when it is chosen."""
        actor = Actor(self, name, body)
        self.actors.append(actor)
        return actor

    def forget(self, actor: Actor) -> None:
        """An actor has ended."""
        self.actors.remove(actor)

    def step(self) -> bool:
        """Lets one actor go on that can; False if there is none."""
        ready = [actor for actor in self.actors if actor.is_ready(self.now)]
        if not ready:
            return False
        actor = ready[0] if len(ready) == 1 else self.rnd.choice(ready)
        self._current = actor.name
        actor.resume()
        self._current = ""
        return True

    def next_wake(self) -> float:
        """The earliest time somebody waits for."""
        return min((actor.wakes_at for actor in self.actors), default=float("inf"))

    def end(self) -> None:
        """Ends every actor, so that no thread is left."""
        for actor in list(self.actors):
            actor.kill()
