"""The life of a connection: its state and epoch, how long calls wait, and the event that ended it.

Theory of operation. A connection is `CONNECTED` while some broker answers, `RECONNECTING` while none does, and at its end `STALE` or
`CLOSED`. All brokers gone is a **loss event**: what the policy does not refresh ends with it, and says so in every later call; the rest goes
on when a broker answers again, one epoch later. While nobody answers, the total time runs, from the loss or from the last call, whichever is
later; after it the connection is given up.

Belongs here: these decisions, without threads of their own and without Kafka. Does not belong here: asking brokers
(`uow.client.session_watch`), the handles (`uow.client.session`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol

from uow.errors import (
    ClientClosedError,
    ReconnectGivenUpError,
    ReconnectTimeoutError,
    StaleConnectionError,
)
from uow.schemas.error_classes import ConfigError, UowError
from uow.topics.policies import ReconnectPolicy

ANSWER_S: Final = 6.0
"""Longest wait for the answer of a broker that is there, where calls never wait for a connection."""
FOR_EVER_S: Final = 2_000_000.0
"""The longest time that every call of the library takes, in milliseconds and 31 bits: three weeks."""


class ConnectionState(StrEnum):
    """Of a connection."""

    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    """No broker answers; the library and we go on trying."""
    STALE = "stale"
    """Ended by a loss event, or given up: make a new connection."""
    CLOSED = "closed"


class Scope(Enum):
    """Kinds of objects that a policy tells apart (R-41)."""

    PRODUCER = "producer"
    READER = "reader"
    BROWSER = "browser"


_REFRESHED: Final[Mapping[ReconnectPolicy, frozenset[Scope]]] = {
    ReconnectPolicy.NONE: frozenset(),
    ReconnectPolicy.PRODUCER: frozenset({Scope.PRODUCER}),
    ReconnectPolicy.ALL: frozenset({Scope.PRODUCER, Scope.READER}),
}


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """No broker answers any more.

    Attributes:
        epoch: Of the connection until now.
        cause: The library's words.
    """

    epoch: int
    cause: str


@dataclass(frozen=True, slots=True)
class ConnectionRefreshed:
    """A broker answers again, and what the policy refreshes goes on.

    Attributes:
        epoch: From now on.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class LostServer:
    """A reader lost partitions with messages that were not acknowledged: they come again, here or elsewhere (R-47).

    Attributes:
        epoch: Of the connection.
        partitions: Topic and number of each.
        first_uncommitted: The offset from which on messages come again, by partition.
    """

    epoch: int
    partitions: tuple[tuple[str, int], ...]
    first_uncommitted: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Missed:
    """A reader without a group, which begins at the end, had to begin anew: these records it did not hand out (R-56). `seek` goes back to them.

    Attributes:
        topic: Its topic.
        partition: Of it.
        start: Offset of the first one.
        end: Offset behind the last one.
    """

    topic: str
    partition: int
    start: int
    end: int


class Told(NamedTuple):
    """An event on its way to the listener.

    Attributes:
        event: The event.
        done: Set once the listener returned.
    """

    event: Event
    done: threading.Event


Event = ConnectionLost | ConnectionRefreshed | LostServer | Missed | UowError
Listener = Callable[[Event], object]
"""Called with what happens to a connection, and with errors that no call is there to raise (R-27)."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long calls wait, and how long a connection that is gone is tried for.

    Attributes:
        blocking_ms: Longest a call waits for a connection; 0: never, -1: for ever.
        total_ms: Longest that reconnecting is tried; -1: for ever.
        transaction_ms: After which the broker ends a transaction: bounds how long a dead sender holds back readers (W-50).
    """

    blocking_ms: int = 6000
    total_ms: int = -1
    transaction_ms: int = 10_000

    @classmethod
    def checked(cls, blocking_ms: int, total_ms: int, transaction_ms: int = 10_000) -> Waits:
        """As given to `connect`.

        Raises:
            ConfigError: Below -1; or a time-out that brokers do not allow.
        """
        if not 1000 <= transaction_ms <= 900_000:
            raise ConfigError("transaction_timeout_ms", transaction_ms, "1000 to 900000, the most that brokers allow")
        for name, value in (("reconnect_blocking_ms", blocking_ms), ("reconnect_total_ms", total_ms)):
            if value < -1:
                raise ConfigError(name, value, "-1 (for ever), or at least 0")
        return cls(blocking_ms, total_ms, transaction_ms)

    @property
    def blocking_s(self) -> float:
        return FOR_EVER_S if self.blocking_ms < 0 else self.blocking_ms / 1000

    @property
    def total_s(self) -> float:
        return FOR_EVER_S if self.total_ms < 0 else self.total_ms / 1000

    @property
    def answer_s(self) -> float:
        """Longest wait for an answer while connected."""
        return self.blocking_s or ANSWER_S

    @property
    def close_s(self) -> float:
        """Longest that `close()` takes unless it is told otherwise."""
        return ANSWER_S if self.blocking_ms < 0 else self.answer_s


class Statistics(NamedTuple):
    """Counters of a connection, over all handles that it had (R-08).

    Attributes:
        sent: Records that the broker has; those of transactions once they are committed.
        reconnects: Times that a broker answered again after all were gone.
        rebuilds: Handles that were replaced, after an error or in doubt.
        stats_since: When counting began, epoch seconds.
    """

    sent: int
    reconnects: int
    rebuilds: int
    stats_since: float


def policy_of(given: ReconnectPolicy | str) -> ReconnectPolicy:
    """A policy as given.

    Raises:
        ConfigError: There is no such policy.
    """
    try:
        return ReconnectPolicy(given)
    except ValueError:
        raise ConfigError("reconnect_policy", given, f"one of {', '.join(ReconnectPolicy)}") from None


LEFT_BEHIND: Final = "this process is a child of fork, and its parent made it: make one here, after the fork"
"""The event that ends everything of a parent in its child."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The event that ended an object.

    Attributes:
        event: In words.
        at: When, epoch seconds.
        kind: The class that calls on the object raise from then on.
    """

    event: str
    at: float
    kind: type[UowError] = ClientClosedError

    def error(self, what: str) -> UowError:
        """The error for a call on the object, named `what`."""
        moment = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")
        state = "closed" if self.kind is ClientClosedError else "stale"
        return self.kind(f"{what} is {state} since {moment}: {self.event}")


class Mortal(Protocol):
    """An object that a loss event may end. Called in the connection's own thread."""

    def end(self, ended: Ended, timeout: float) -> None: ...


class Life:
    """State and epoch of one connection. For any thread.

    Args:
        servers: Bootstrap addresses, for messages.
        policy: The objects that are refreshed.
        waits: How long calls wait.
        clock: Seconds, from anywhere.
        wall: Epoch seconds.
        is_named: True if it has a client id: under another policy than `all`, a loss event ends all of it (R-23).

    Attributes:
        events: What the listener has not heard yet.
        policy: May be changed, and counts from the next loss event on (R-40).
        reconnects: Number of refreshes.
        rebuilds: Number of handles that were replaced.
        has_listener: True if somebody hears of the events.
        sent: Number of records that the broker has, of all handles.
        since: When counting began, epoch seconds.
    """

    def __init__(
        self,
        servers: str,
        policy: ReconnectPolicy = ReconnectPolicy.PRODUCER,
        waits: Waits = Waits(),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        is_named: bool = False,
    ) -> None:
        self.servers, self.policy, self.waits, self.is_named = servers, policy, waits, is_named
        self.clock, self._wall = clock, wall
        self.events: SimpleQueue[Told] = SimpleQueue()
        self.epoch = 0
        self.since = wall()
        self.has_listener = False
        self.sent = self.reconnects = self.rebuilds = 0
        self._state = ConnectionState.RECONNECTING
        self._is_connected = False
        self._cause = "no broker has answered yet"
        self._quiet_since = clock()
        self._ended: Ended | None = None
        self._mortals: dict[int, tuple[Mortal, Scope]] = {}
        self._changed = threading.Condition()

    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def is_connected(self) -> bool:
        """True while a broker answers; after the end, if one did at the end."""
        return self._is_connected

    @property
    def cause(self) -> str:
        """The library's newest words on why no broker answers."""
        return self._cause

    @property
    def ended(self) -> Ended | None:
        """The event that ended it; None while it lives."""
        return self._ended

    # -- events

    def answered(self) -> None:
        """A broker answers. After an outage that is a refresh; the first time it is the beginning."""
        with self._changed:
            self._cause = "no broker answers any more"  # until the library says why
            if self._state is not ConnectionState.RECONNECTING:
                return
            self._state, self._is_connected = ConnectionState.CONNECTED, True
            self.epoch += 1
            if self.epoch > 1:
                self.reconnects += 1
                self.tell(ConnectionRefreshed(self.epoch))
            self._changed.notify_all()

    def lost(self, cause: str) -> None:
        """No broker answers: a loss event, once per outage."""
        with self._changed:
            if self._state is not ConnectionState.CONNECTED:
                return
            self._cause, self._quiet_since = cause, self.clock()
            self.tell(ConnectionLost(self.epoch, cause))
            self._state, self._is_connected = ConnectionState.RECONNECTING, False
            ended = Ended(f"all brokers of {self.servers} were gone: {cause}", self._wall(), StaleConnectionError)
            if self.ends_with_a_loss:
                self._end(ConnectionState.STALE, ended)
            doomed = [each for each, scope in self._mortals.values() if not self.is_refreshed(scope)]
        for each in doomed:
            each.end(ended, 0.0)

    @property
    def ends_with_a_loss(self) -> bool:
        """True if a loss event ends the connection and all that it made (R-23, R-61)."""
        return self.policy is ReconnectPolicy.NONE or (self.is_named and self.policy is not ReconnectPolicy.ALL)

    def lost_reader(self, event: str, kind: type[UowError] = StaleConnectionError) -> Ended:
        """A loss event of one reader that is not refreshed: how it ends, and perhaps the connection with it; the listener hears of that."""
        ended = Ended(event, self._wall(), kind)
        with self._changed:
            if self.ends_with_a_loss and self._ended is None:
                self._end(ConnectionState.STALE, ended)
                self.tell(ended.error("the connection"))
        return ended

    def heard(self, cause: str) -> None:
        """The newest words of the library on why no broker answers."""
        self._cause = cause

    def tick(self) -> None:
        """Gives up once the total time is over (R-42)."""
        if self._state is ConnectionState.RECONNECTING and self.clock() - self._quiet_since >= self.waits.total_s:
            self.give_up(f"no broker of {self.servers} answered for {self.waits.total_s:g} s: {self._cause}")

    def give_up(self, cause: str) -> None:
        """Reconnecting cannot succeed, or took too long; the listener hears of it (R-09, R-42)."""
        ended = Ended(cause, self._wall(), ReconnectGivenUpError)
        with self._changed:
            if self._ended is None:
                self._end(ConnectionState.STALE, ended)
                self.tell(ended.error("the connection"))

    def close(self) -> bool:
        """Ends it at the application's wish. False if that was done before."""
        with self._changed:
            if self._state is ConnectionState.CLOSED:
                return False
            self._end(ConnectionState.CLOSED, self._ended or Ended("close() was called", self._wall()))
            return True

    def left_behind(self) -> Ended:
        """In a child of fork it is closed, whatever a thread of the parent had in hand; returns the event."""
        ended = Ended(LEFT_BEHIND, self._wall())
        self._changed = threading.Condition()
        with self._changed:
            self._end(ConnectionState.CLOSED, ended)
        return ended

    def _end(self, state: ConnectionState, ended: Ended) -> None:
        self._state, self._ended = state, ended
        self._changed.notify_all()

    def count(self, *, sent: int = 0, rebuilds: int = 0) -> None:
        """Adds to the counters."""
        with self._changed:
            self.sent += sent
            self.rebuilds += rebuilds

    def tell(self, event: Event) -> threading.Event:
        """Puts an event in line for the listener; what is returned is set once the listener has returned."""
        told = Told(event, threading.Event())
        self.events.put(told)
        return told.done

    def watch_over(self, mortal: Mortal, scope: Scope) -> None:
        """A loss event ends `mortal` from now on, unless the policy refreshes its kind."""
        with self._changed:
            self._mortals[id(mortal)] = mortal, scope

    def forget(self, mortal: Mortal) -> None:
        """It has ended otherwise."""
        with self._changed:
            self._mortals.pop(id(mortal), None)

    def closed_now(self, event: str = "close() was called") -> Ended:
        """An end at this moment, at the application's wish."""
        return Ended(event, self._wall())

    def is_refreshed(self, scope: Scope) -> bool:
        """True if the policy of now refreshes objects of that kind."""
        return scope in _REFRESHED[self.policy]

    # -- calls

    def require_open(self) -> None:
        """Raises what a call on an ended connection raises, with the event that ended it, and when; notes that a call was made.

        Raises:
            ClientClosedError: Closed.
            StaleConnectionError: A loss event ended it.
            ReconnectGivenUpError: Given up.
        """
        if self._ended is not None:
            raise self._ended.error("the connection")
        if not self._is_connected:
            self._quiet_since = self.clock()

    def wait(self) -> None:
        """Waits for a connection, for the blocking time at most. In short steps, so that Ctrl-C is heard.

        Raises:
            ReconnectTimeoutError: None in time.
            UowError: As `require_open`.
        """
        patience = Patience(self)
        while True:
            self.require_open()
            if self.is_connected:
                return
            patience.spend()
            with self._changed:
                self._changed.wait_for(lambda: self._is_connected or self._ended is not None, 0.1)

    def too_long(self, doing: str = "") -> ReconnectTimeoutError:
        """The error of a call that waited in vain; it names the addresses."""
        if self._is_connected:
            text = f"no answer within {self.waits.answer_s:g} s from {self.servers}"
        else:
            text = f"no broker of {self.servers} answered within {self.waits.blocking_s:g} s: {self._cause}"
        return ReconnectTimeoutError(f"{doing}: {text}" if doing else text)


class Patience:
    """One call's wait: for a connection while there is none, for an answer while there is one."""

    __slots__ = ("_begun", "_gone_since", "_life")

    def __init__(self, life: Life) -> None:
        self._life = life
        self._begun = life.clock()
        self._gone_since: float | None = None

    def spend(self, is_late: bool = False) -> None:
        """Raises once the call has waited for a connection as long as it may.

        Args:
            is_late: The call's own time is over.

        Raises:
            ReconnectTimeoutError: No connection, and no time left.
            UowError: As `Life.require_open`.
        """
        life = self._life
        if life.ended is not None:
            life.require_open()
        if self.is_in_vain or (is_late and not life.is_connected):
            raise life.too_long()

    @property
    def is_in_vain(self) -> bool:
        """True if there has been no connection for as long as a call waits for one."""
        life = self._life
        if life.is_connected:
            self._gone_since = None
            return False
        now = life.clock()
        if self._gone_since is None:
            self._gone_since = now
        return now - self._gone_since >= life.waits.blocking_s

    @property
    def is_over(self) -> bool:
        """True if a call that waits for an answer has waited long enough, connected or not."""
        waits = self._life.waits
        limit = waits.answer_s if self._life.is_connected else waits.blocking_s
        return self._life.clock() - self._begun >= limit
