"""A deterministic scheduler: one actor runs at a time, a seed says which.

Production code calls its ports from deep in its stack, so an actor must be able to wait there while others run. The standard
library has no coroutine with a stack of its own but the thread; so each actor has a thread that runs only while it holds the baton. There
is no parallelism, no lock to win and no wall clock, and a seed plays the same run every time.

An actor that gives the baton away advances the *plot* (a generator: faults, traffic, time) until the plot yields, and chooses the next actor. If
that is itself, no thread is switched: a run spends its time in the code under test.

Belongs here: actors, the baton, simulated time. Does not belong here: the actors' work, and faults.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from random import Random

Condition = Callable[[], bool]

STAY = 0.5
"""Probability that an actor which gives the baton away gets it back at once, if it can run."""


class Crash(BaseException):
    """The process is gone (kill -9): unwinds its stack; nothing may catch it."""


class Actor:
    """A process of the simulation.

    Attributes:
        name: Its name in the script.
        alive: False once it crashed or ended.
        paused_at: Time at which it was stopped (SIGSTOP), or None.
        silent_since: Time at which it was stopped or died, or None.
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
        """It never runs again; its stack is unwound when the run has ended."""
        if self.alive:
            self.alive, self.paused_at, self._died_at = False, None, self._scheduler.now

    def is_ready(self, now: float) -> bool:
        """True if it can run."""
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
        """The time at which it runs if its condition does not hold before."""
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
        rnd: Random numbers for every choice of the run.

    Attributes:
        now: Simulated milliseconds.
        script: The events, for people.
        failures: Exceptions that ended an actor and should not have.
        is_idle: True if no actor could run when the plot yielded last.
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
        """Plays a plot to its end. At each `yield` of it one actor runs, if one can.

        Raises:
            BaseException: Any exception of the plot.
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
        """Advances the plot until an actor can run, and returns it; None at its end."""
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
        """Hands the baton over; None: to the thread that called `play`."""
        (actor.go if actor is not None else self._back).release()

    def next_wake(self) -> float:
        """The earliest time that an actor waits for."""
        return min((actor.wakes_at for actor in self.actors), default=float("inf"))
