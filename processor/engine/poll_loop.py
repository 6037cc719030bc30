"""A thread that polls: its start in the group, its stop, and the end of its ports; the driver and the router are such threads.

Belongs here: what both do alike. Does not belong here: a turn, and what follows a failure (`driver`, `uow.processor.kafka.router`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from uow.processor.engine.ports import Doubt, RecordSource, Sink, Stopped, Tp
from uow.processor.engine.tracebacks import without_frames


class Closable(Protocol):
    """A port that is closed at the end."""

    def close(self) -> None: ...


def _doubt_in(step: Callable[[], None]) -> Doubt | None:
    """Takes a step. Returns the doubt that ended it."""
    try:
        step()
    except Doubt as doubt:
        return without_frames(doubt)
    return None


class PollLoop(threading.Thread):
    """Runs turns until it is asked to stop, or until something cannot be repaired.

    Args:
        name: Of the thread.
        source: Reads, as a member of the group.
        sink: Writes.
        others: Further ports, closed after these.
        stop: Set when asked to stop; ports that wait for brokers look at it.
    """

    def __init__(
        self, name: str, source: RecordSource, sink: Sink, stop: threading.Event, others: Sequence[Closable] = ()
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._source, self._sink, self._others, self._stopping = source, sink, others, stop

    def request_stop(self) -> None:
        """Finish the turn, commit it, leave the group."""
        self._stopping.set()

    def run(self) -> None:
        """The thread's body."""
        error: BaseException | None = None
        try:
            self._sink.open(self._check_stop)
            self._source.open(self._topics(), self._on_assign, self._on_revoke, self._on_revoke)
            while not self._stopping.is_set():
                self._guarded(self._turn)
            self._guarded(self._last_turn)
        except Stopped:
            pass
        except BaseException as failure:  # noqa: BLE001 - the thread's boundary: whatever it is, its owner must hear of it
            error = failure
        ports: list[Closable] = [self._source, self._sink, *self._others]
        for port in ports:
            try:
                port.close()
            except BaseException as failure:  # noqa: BLE001 - as above; the first error is the one to report
                error = error or failure
        self._finished(error)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Starts over as often as it takes: the way back may meet a doubt too, where a partition cannot be set back for example.

        Nothing of the turn that met a doubt is left by then: no frame of it can be reached any more.
        """
        doubt = _doubt_in(step)
        while doubt is not None:
            doubt = _doubt_in(partial(self._start_over, doubt))
            if doubt is not None and self._stopping.is_set():
                raise doubt

    def _check_stop(self) -> None:
        """A `Meanwhile` for waiting before the group is joined."""
        if self._stopping.is_set():
            raise Stopped("asked to stop while it waited")

    def _serve(self) -> None:
        """A `Meanwhile` (ER-17)."""
        self._check_stop()
        self._source.control(0.0)

    # -- of each

    def _topics(self) -> Sequence[str]:
        """The topics of the group."""
        raise NotImplementedError

    def _on_assign(self, tps: list[Tp]) -> None:
        """Takes note of partitions."""
        raise NotImplementedError

    def _on_revoke(self, tps: list[Tp]) -> list[Tp]:
        """Lets partitions go, revoked or lost; returns all that go with them."""
        raise NotImplementedError

    def _turn(self) -> None:
        """One turn. `Doubt` is what `_start_over` deals with; anything else ends the thread."""
        raise NotImplementedError

    def _last_turn(self) -> None:
        """After a request to stop; nothing by default."""

    def _start_over(self, doubt: Doubt) -> None:
        """Back to what is committed."""
        raise NotImplementedError

    def _finished(self, error: BaseException | None) -> None:
        """The thread ends, with the error if it was not asked to."""
        raise NotImplementedError
