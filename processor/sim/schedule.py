"""A deterministic scheduler: one actor runs at a time, a seed says which.

Production code calls its ports from deep in its stack, so an actor must be able to stand still there while others go on. The standard
library has no coroutine with a stack of its own but the thread; so each actor has a thread that runs only while it holds the baton. There
is no parallelism, no lock to win and no wall clock, and a seed plays the same run every time.

Who gives the baton away plays the *plot* on (a generator: faults, traffic, time) until it asks for somebody to go on, and chooses. If that
is itself, no thread is switched at all: a run spends its time in the code under test.

Belongs here: actors, the baton, simulated time. Does not belong here: what actors do, and faults.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from random import Random

Condition = Callable[[], bool]

STAY = 0.5
"""How often whoever gives the baton away gets it back at once, if it can go on."""


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
        self.go = threading.Lock()
        self.go.acquire()
        _thread.start_new_thread(self._run, ())

    def wait(self, until: Condition | None = None, timeout_ms: float | None = 0.0) -> None:
        """Gives the baton away until the condition holds or the time is over (None: no limit).

        Raises:
            Crash: It was killed meanwhile.
        """
        if not self.alive:
            raise Crash
        self._until = until
        self._deadline = self._scheduler.now + timeout_ms if timeout_ms is not None else float("inf")
        chosen = self._scheduler.choose(self)
        if chosen is not self:
            self._scheduler.pass_to(chosen)
            self.go.acquire()
            if not self.alive:
                raise Crash

    def kill(self) -> None:
        """It never goes on again; its stack is unwound when the run has ended."""
        if self.alive:
            self.alive, self.paused_at, self._died_at = False, None, self._scheduler.now

    def is_ready(self, now: float) -> bool:
        """Whether it can go on."""
        return (
            self.alive
            and self.paused_at is None
            and (now >= self._deadline or (self._until is not None and self._until()))
        )

    @property
    def silent_since(self) -> float | None:
        return self.paused_at if self.alive else self._died_at

    @property
    def wakes_at(self) -> float:
        """When it goes on if nothing happens."""
        return self._deadline if self.alive and self.paused_at is None else float("inf")

    def _run(self) -> None:
        self.go.acquire()
        scheduler = self._scheduler
        try:
            if self.alive:
                self._body(self)
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - the thread's boundary; the run reports it
            scheduler.failures.append(error)
        self.kill()
        scheduler.actors.remove(self)
        scheduler.pass_to(None if scheduler.is_over else scheduler.choose(None))


class Scheduler:
    """Actors, time, and the script of what happened. Time is a number that the plot moves.

    Args:
        rnd: Every choice of the run.

    Attributes:
        now: Milliseconds, since a beginning long ago.
        script: What happened, for people.
        failures: What ended an actor that should not have ended.
        is_idle: Nobody could go on when the plot asked last.
        is_over: The plot has ended.
    """

    def __init__(self, rnd: Random) -> None:
        self.rnd, self.now = rnd, 1_000_000.0
        self.script: list[str] = []
        self.failures: list[BaseException] = []
        self.actors: list[Actor] = []
        self.is_idle = self.is_over = False
        self._plot: Iterator[None] = iter(())
        self._error: BaseException | None = None
        self._back = threading.Lock()
        self._back.acquire()
        self._current = ""

    def say(self, text: str, who: str | None = None) -> None:
        """Adds a line to the script."""
        self.script.append(f"{self.now - 1_000_000:9.0f}  {who if who is not None else self._current:<9} {text}")

    def spawn(self, name: str, body: Callable[[Actor], None]) -> Actor:
        """A new actor; it runs when it is chosen."""
        actor = Actor(self, name, body)
        self.actors.append(actor)
        return actor

    def play(self, plot: Iterator[None]) -> None:
        """Plays a plot to its end. At each `yield` of it one actor goes on, if one can.

        Raises:
            BaseException: Whatever the plot raised.
        """
        self._plot = plot
        chosen = self.choose(None)
        if chosen is not None:
            self.pass_to(chosen)
            self._back.acquire()
        self.is_over = True
        for actor in list(self.actors):
            actor.alive = False
            actor.go.release()
            self._back.acquire()
        if self._error is not None:
            raise self._error

    def choose(self, current: Actor | None) -> Actor | None:
        """Plays the plot on until somebody is to go on, and says who; None at its end."""
        self._current = ""
        while not self.is_over:
            try:
                next(self._plot)
            except StopIteration:
                return None
            except BaseException as error:  # noqa: BLE001 - raised again where the plot began
                self._error = error
                return None
            ready = [actor for actor in self.actors if actor.is_ready(self.now)]
            self.is_idle = not ready
            if ready:
                stays = current in ready and self.rnd.random() < STAY
                chosen = current if stays and current is not None else self.rnd.choice(ready)
                self._current = chosen.name
                return chosen
        return None

    def pass_to(self, actor: Actor | None) -> None:
        """Hands the baton over; None: back to where the plot began."""
        (actor.go if actor is not None else self._back).release()

    def next_wake(self) -> float:
        """The earliest time somebody waits for."""
        return min((actor.wakes_at for actor in self.actors), default=float("inf"))
