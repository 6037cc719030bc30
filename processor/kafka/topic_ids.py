"""Ids of topics that are read: a topic that is deleted and made again meanwhile is another one (F24).

librdkafka 2.16 goes on in the new topic, at the same offset, past what was appended before it, and says nothing. So ids are asked for now and then,
without waiting for the answer. The first answer tells which topic is meant.

Belongs here: asking, and comparing. Does not belong here: what follows for the reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

LOOK_S: Final = 5.0
"""Between two questions; for so long a topic that was made again may be read unnoticed."""
MADE_AGAIN: Final = "the topic was deleted and made again while it was read: what was appended to it before the offset at which reading went on is not read"


class TopicIds:
    """The ids of the topics that one worker or reader reads. For one thread.

    Args:
        admin: Makes the handle that is asked, when it is first needed.
        clock: Seconds, from anywhere.

    Attributes:
        changed: Topics that are not those of the first answer any more.
    """

    def __init__(self, admin: Callable[[], AdminClient], clock: Callable[[], float] = time.monotonic) -> None:
        self.changed: set[str] = set()
        self._make, self._clock = admin, clock
        self._admin: AdminClient | None = None
        self._first: dict[str, str] = {}
        self._answers: dict[str, Future[Any]] = {}
        self._ask_at = clock()

    def look(self, topics: Collection[str]) -> None:
        """Takes the answers that are there, and asks for those of these topics where it is time."""
        if self._answers:
            self._take()
        now = self._clock()
        if now < self._ask_at or not topics:
            return
        self._ask_at = now + LOOK_S
        if self._admin is None:
            self._admin = self._make()
        self._answers = dict(self._admin.describe_topics(TopicCollection([*topics]), request_timeout=LOOK_S))

    def _take(self) -> None:
        for name in [name for name, answer in self._answers.items() if answer.done()]:
            with suppress(ck.KafkaException):  # gone for now, or no broker answered: asked again
                topic_id = str(self._answers.pop(name).result().topic_id)
                if self._first.setdefault(name, topic_id) != topic_id:
                    self.changed.add(name)
