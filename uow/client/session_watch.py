"""The watch over a connection: a thread that asks the brokers, moves the connection's state, and calls the listener.

Theory of operation. A handle of its own hears of broken connections. They are doubt and no loss: one broker of several may be gone, or a
broker closed an idle connection. So the watch asks for metadata, and only where nobody answers that is a loss. From then on it asks until somebody
does, or the total time is over. The listener is called in this thread, so whatever it does delays the watch, and nothing else.

Nothing breaks where brokers fall silent: a machine hangs, or a line drops packets. So a patient question is asked, in the background, whenever there was
no answer for a while, and too long without one is a loss as well. A broker that does not answer it is left by the library after four seconds, and another one is
asked: one silent broker of several is no loss. Nor is a process that stood still, or had no time to look: only time in which somebody looked counts as silence.

Belongs here: the thread. Does not belong here: what follows from an outage (`uow.client.session_state`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from uow.client.kafka_port import LogWatch, ProducerHandle
from uow.client.session_state import ConnectionState, Life, Listener
from uow.processor.kafka.bounded import Call
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.topics.access import explained

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
"""Between two looks at what the handle has heard."""
ASK_S: Final = 0.5
"""Longest that a question waits which nothing else can be done beside, so that `close()` is heard."""
QUIET_S: Final = 3.0
"""So long without an answer, and the patient question is asked."""
PATIENT_S: Final = 5.2
"""How long it waits: longer than the library takes to leave a broker that is silent, which it looks for once a second."""
LOST_S: Final = 11.5
"""So long without an answer is a loss."""
LEAVES_THE_SILENT: Final[Mapping[str, Any]] = {"socket.timeout.ms": 4000, "socket.max.fails": 1}
"""Properties by which the handle leaves a broker that does not answer in time for another one to be asked."""
SILENT: Final = f"brokers have fallen silent: no answer for {LOST_S:g} s"
ASKED_TOPIC: Final = "__consumer_offsets"
"""Any answer about it will do; about all topics it may be megabytes."""
REFUSALS: Final = 3
"""Answers in a row that refuse our identity: a broker that is going down may give one by accident."""

Make = Callable[[Callable[[KafkaError], None], logging.Logger], ProducerHandle]


class Silence:
    """How long no broker has answered, and the patient question that is under way meanwhile."""

    def __init__(self) -> None:
        self._lasts_s = 0.0
        self._looked_at = time.monotonic()
        self._question: Call | None = None

    @property
    def is_loss(self) -> bool:
        """True if it has lasted too long."""
        return self._lasts_s >= LOST_S

    @property
    def is_asking(self) -> bool:
        """True while a question is under way."""
        return self._question is not None

    def end(self) -> None:
        """A broker answered."""
        self._lasts_s = 0.0

    def forget(self) -> None:
        """Gives up the question that is under way: it may be answered already, by a broker that is gone since."""
        self._question = None

    def look(self, ask: Callable[[], object]) -> bool:
        """True if the question was answered. If it is time for one, it begins.

        Args:
            ask: Asks patiently; raises if nobody answers.
        """
        now = time.monotonic()
        self._lasts_s += min(now - self._looked_at, 1.0)  # more was no silence: the process stood still, or had no time
        self._looked_at = now
        is_answered = False
        if self._question is not None and self._question.is_over(0):
            with suppress(KafkaException):
                is_answered = self._question.returned(0)
            self._question = None
        if self._question is None and not is_answered and self._lasts_s >= QUIET_S:
            try:
                self._question = Call(ask)
            except RuntimeError:  # no thread can be started now: nobody was asked, so nobody is silent
                self._lasts_s = QUIET_S
        return is_answered


class Watch:
    """Watches one connection.

    Args:
        life: Its state.
        make: Makes the handle, which reports its errors to the function given.
        listener: Hears of what happens; None: nobody does.
        on_end: Called once the connection has ended by itself: lets its handles go.
    """

    def __init__(self, life: Life, make: Make, listener: Listener | None, on_end: Callable[[], None]) -> None:
        self._life, self._make, self._listener, self._on_end = life, make, listener, on_end
        self._stop = threading.Event()
        self._doubt = False
        self._refusals = 0
        self._was_refused = False
        self._asked_at = 0.0
        self._handle: ProducerHandle | None = None
        self._silence = Silence()
        self._thread = threading.Thread(target=self._run, name="uow-connection", daemon=True)

    def start(self) -> None:
        """Asks for the first time, and begins to watch; returns at once."""
        self._handle = self._make(self._on_error, LogWatch().logger)
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Ends the calls of the listener: of what happened so far it hears. From within the listener it does not wait for itself, and ends them at once."""
        self._stop.set()
        if threading.current_thread() is self._thread:
            self._listener = None
        elif self._thread.ident is not None:
            self._thread.join(timeout)

    def _on_error(self, error: KafkaError) -> None:
        """Called by the handle, within `poll` or a question."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._life.heard(explained(error.name(), error.str()))
        elif self._silence.is_asking:
            return  # nothing broke: the library has left brokers that do not answer
        self._doubt = True
        self._was_refused = self._was_refused or error.code() in (
            KafkaError._AUTHENTICATION,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError._SSL,
        )

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and self._life.ended is None:
                self._look()
                self._tell()
                self._stop.wait(LOOK_S)
            if self._life.state is ConnectionState.STALE:
                self._on_end()
            else:
                self._stop.wait()  # `close()` may have more to tell
            self._tell()
        except Exception:
            log.exception("the watch over the connection to %s failed", self._life.servers)
        finally:
            self._handle = None
            self._silence.forget()

    def _look(self) -> None:
        handle, life = self._handle, self._life
        assert handle is not None
        if self._silence.look(partial(handle.list_topics, ASKED_TOPIC, PATIENT_S)):
            self._on_answer(handle)
        if life.is_connected:
            handle.poll(0)
            if not self._doubt or time.monotonic() - self._asked_at < 1.0:
                if self._silence.is_loss:
                    life.lost(SILENT)
                return
        self._doubt = False
        self._asked_at = time.monotonic()
        cause = self._ask(handle)
        if cause is None:
            self._on_answer(handle)
            return
        if life.is_connected:
            self._silence.forget()
            life.lost(cause)
        if self._refusals >= REFUSALS:
            life.give_up(f"{life.servers} refuses this client: {cause}")
        life.tick()

    def _on_answer(self, handle: ProducerHandle) -> None:
        self._silence.end()
        self._refusals, self._was_refused = 0, False
        if not self._life.is_connected:
            handle.poll(0)
            self._doubt = False  # whatever the handle has heard until now is of the outage that ends
        self._life.answered()

    def _ask(self, handle: ProducerHandle) -> str | None:
        """Asks any broker; None if one answered, else the reason."""
        try:
            handle.list_topics(ASKED_TOPIC, ASK_S)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            handle.poll(0)  # the reason, where the library has one
            if meaning_of(error) is Meaning.NOT_AUTHORISED or self._was_refused:
                self._refusals += 1
            else:
                self._refusals = 0
            self._was_refused = False
            return self._life.cause
        return None

    def _tell(self) -> None:
        while True:
            try:
                event, done = self._life.events.get_nowait()
            except Empty:
                return
            try:
                if self._listener is not None:
                    self._listener(event)
            except Exception:
                log.exception("the listener of the connection to %s failed at %s", self._life.servers, event)
            finally:
                done.set()
