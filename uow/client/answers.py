"""Workers' answers to commands that this connection sent, from `D.outcomes` (W-62, W-203).

Theory of operation. The end of `D.outcomes` is asked for before a command is sent, and everything behind it is read when the answer is asked
for. An answer that is never asked for costs one idle consumer.

Belongs here: `Answers`, and `Cancellation`, the result of `connection.cancel`. Does not belong here: the effect of a command
(`uow.processor.core.command`), and commands by hand (`uow.ops.group_commands`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from uow.client.following import Follower
from uow.client.forwarding import Forwarded, Hop
from uow.client.kafka_port import ConsumedRecord, raw_headers
from uow.schemas import codec
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import Answer
from uow.topics.commands import COMMAND_ID, KIND_ANSWER, Command, is_answer_to
from uow.topics.headers import KIND

log = logging.getLogger(__name__)

STEP_S = 0.5
"""Longest single wait inside the library, so that Ctrl-C is heard."""


class Cancellation:
    """A cancel that was sent: the result for the message at once, and for the unit in a while.

    Attributes:
        forwarded: As of `forward`: the command and the message's position are one transaction. `committed` says that the command will be decided,
            and not how.
        command_id: `uow-command-id`.
    """

    def __init__(self, command: Command, signer: str | None, answers: Answers) -> None:
        self.command_id = command.id.decode()
        self._command, self._signer = command, signer
        self.forwarded = Forwarded.AGAIN
        self._found: Answer | None = None
        self._answers = answers
        self._hop: Hop | None = None

    def _sent(self, forwarded: Forwarded, hop: Hop) -> None:
        """Notes the result of forwarding the command."""
        self.forwarded, self._hop = forwarded, hop

    def answer(self, timeout: float = 30.0) -> Answer | None:
        """The worker's answer: `done`, and `text`, which says what was cancelled or why nothing was.

        With a `commit_interval_ms` the open transaction is committed first, since no worker can read the command before.

        Args:
            timeout: Seconds.

        Returns:
            The answer; None when there was none in time (ask again), or nothing was sent (`forwarded` is `again`).

        Raises:
            UowError: As for a commit; or no broker answers.
        """
        if self.forwarded is Forwarded.PENDING and self._hop is not None and self._hop.is_open:
            self._hop.commit()
        if self._found is None and self.forwarded is not Forwarded.AGAIN:
            self._answers.wait(self, timeout)
        return self._found

    def __repr__(self) -> str:
        return f"Cancellation({self.command_id!r}, {self.forwarded.value}, {self._found})"


class Answers:
    """Answers to the commands of one connection to one destination. For any thread.

    Args:
        follow: Follows `D.outcomes` from now on.
        registry: Where schemas of answers are, if they are in a registry.
        clock: Seconds, from anywhere.
    """

    def __init__(
        self,
        follow: Callable[[], Follower],
        registry: codec.SchemaSource | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follow, self._registry, self._clock = follow, registry, clock
        self._lock = threading.Lock()
        self._follower: Follower | None = None
        self._asked: WeakValueDictionary[bytes, Cancellation] = WeakValueDictionary()

    def expect(self, command: Command, signer: str | None) -> Cancellation:
        """Call it before the command is sent, with the name of the key that signs it. Raises as `Follower`."""
        with self._lock:
            if self._follower is None:
                self._follower = self._follow()
            elif not self._asked:  # no caller waits for the answers that came meanwhile
                self._follower.skip()
            asked = self._asked[command.id] = Cancellation(command, signer, self)
            return asked

    def wait(self, cancellation: Cancellation, timeout: float) -> None:
        """Reads until the answer is there, or the time is over."""
        until = self._clock() + timeout
        while cancellation._found is None and (left := until - self._clock()) >= 0:
            with self._lock:
                if self._follower is None:
                    return
                record = self._follower.poll(min(left, STEP_S))
                if record is not None:
                    self._take(record)

    def _take(self, record: ConsumedRecord) -> None:
        try:
            headers = dict(raw_headers(record))
            asked = self._asked.get(headers.get(COMMAND_ID) or b"")
            if asked is not None and asked._found is None and headers.get(KIND) == KIND_ANSWER:
                found = codec.decode_as(Answer, record.value() or b"", registry=self._registry)
                if is_answer_to(found, asked._command, asked._signer):
                    asked._found = found
        except DecodeError as error:
            log.warning(
                "an answer that cannot be read, at %s/%s/%s: %s",
                record.topic(),
                record.partition(),
                record.offset(),
                error,
            )

    def close(self) -> None:
        """Closes the consumer: no answer is read any more."""
        with self._lock:
            if self._follower is not None:
                self._follower.close()
            self._follower = None
