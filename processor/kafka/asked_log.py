"""Commands to set records of routers' inputs aside, read in `D.commands` while an input is blocked (`uow.processor.engine.set_aside`).

A router keeps no position there. While it stands at a record it reads the one partition where a command about it is, from the append time of the
record on: nobody can have asked before. So a command holds over restarts and moves, and by naming the record it concerns no other one.

Belongs here: polling. Does not belong here: what a router does then (`uow.processor.kafka.router`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any, Final, NamedTuple, Protocol

import confluent_kafka as ck

from uow.processor.core.columns import Seen, looked_at
from uow.processor.engine.set_aside import asked_aside
from uow.processor.kafka.error_table import Meaning, is_passing, meaning_of
from uow.topics.commands import Asked, CommandReader, RecordPlace
from uow.topics.partitioner import partition_for

log = logging.getLogger("uow.rules")

ANSWER_S: Final = 2.0
"""Longest wait for the offsets of a moment: inputs that are not blocked wait meanwhile."""
AGAIN_S: Final = 5.0
"""Before it is tried again after an error, and before brokers are asked again how many partitions there are."""
CHUNK: Final = 1_000
CHUNKS: Final = 20
"""Most chunks in one go: there may be any number of other commands."""


class AskedOf(NamedTuple):
    """A command about a record of an input.

    Attributes:
        destination: The one whose `D.commands` has it, and whose `D.rejected` gets the record.
        partition: Of `D.commands`.
        asked: The command.
    """

    destination: str
    partition: int
    asked: Asked


class AskedLog(Protocol):
    """Port: commands about records at which inputs are blocked."""

    def look(self, standing: Mapping[RecordPlace, int]) -> Mapping[RecordPlace, list[AskedOf]]:
        """Those about these records, as far as they are known now; does not wait long.

        Args:
            standing: Append time of each record, epoch ms.
        """
        ...

    def close(self) -> None: ...


class KafkaAskedLog:
    """Port `AskedLog`.

    Args:
        commands: `D.commands`, and how commands are read, by destination.
        make_consumer: Makes a consumer that is assigned by hand.
        monotonic: Seconds, from anywhere.
    """

    def __init__(
        self,
        commands: Mapping[str, tuple[str, CommandReader]],
        make_consumer: Callable[[], Any],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_consumer, self._monotonic = make_consumer, monotonic
        self._destinations = {topic: (destination, reader) for destination, (topic, reader) in commands.items()}
        self._counts: dict[str, set[int]] = {topic: set() for topic in self._destinations}
        self._next_counted = cycle(self._counts)
        self._leaderless: set[tuple[str, int]] = set()
        self._has_counted = self._lacks_some = False
        self._consumer: Any = None
        self._found: dict[RecordPlace, list[AskedOf]] = {}
        self._again_at = self._count_at = 0.0

    def look(self, standing: Mapping[RecordPlace, int]) -> Mapping[RecordPlace, list[AskedOf]]:
        if not standing:
            self.close()
        elif self._monotonic() >= self._again_at:
            try:
                self._read(standing)
            except ck.KafkaException as error:
                log.warning("commands about blocked inputs cannot be read: %s", error.args[0].str())
                self.close()
                self._again_at = self._monotonic() + AGAIN_S
        return self._found

    def _read(self, standing: Mapping[RecordPlace, int]) -> None:
        self._consumer = self._consumer or self._make_consumer()
        if self._count() or standing.keys() != self._found.keys():
            self._begin(standing)
        for _ in range(CHUNKS):
            messages = self._consumer.consume(CHUNK, 0)
            for message in messages:
                error = message.error()
                if error is None:
                    self._take(message)
                elif meaning_of(error) is not Meaning.END and not is_passing(error):
                    raise ck.KafkaException(error)
            if not messages:
                return

    def _count(self) -> bool:
        """Asks, now and then, which partitions a topic has: at first all topics, then one at a time. True if it is to be read in another way."""
        if self._monotonic() < self._count_at:
            return False
        is_new, before = self._lacks_some, self._leaderless
        for topic in [next(self._next_counted)] if self._has_counted else [*self._counts]:
            partitions = self._consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
            is_new |= len(partitions) > max(self._counts[topic], default=0)
            self._counts[topic].add(len(partitions))
            leaderless = {(topic, number) for number, each in partitions.items() if each.leader < 0}
            self._leaderless = leaderless | {where for where in self._leaderless if where[0] != topic}
        self._has_counted, self._count_at = True, self._monotonic() + AGAIN_S
        return is_new or self._leaderless != before

    def _begin(self, standing: Mapping[RecordPlace, int]) -> None:
        """Reads from the records' append times on. A partition that cannot be asked is left out: commands in the others are heard."""
        since, before = dict[tuple[str, int], int](), dict[tuple[str, int], int]()
        for place, at in standing.items():
            for topic, counts in self._counts.items():
                for count in range(1, max(counts) + 1):
                    times, where = since if count in counts else before, (topic, partition_for(place.key, count))
                    times[where] = max(0, min(at, times.get(where, at)))
        since = {where: at for where, at in since.items() if where not in self._leaderless}
        before = {where: at for where, at in before.items() if where not in self._leaderless | since.keys()}
        self._lacks_some = False
        # before the question: what comes between the two is not passed over
        ends = {where: self._consumer.get_watermark_offsets(ck.TopicPartition(*where), ANSWER_S)[1] for where in since}
        begins = self._offsets(since)
        for each in begins:
            if each.offset < 0:  # nothing is so young
                each.offset = ends[each.topic, each.partition]
        try:
            # a command from before the topic grew is where there were fewer; none comes there any more, so most need not be read
            begins += [each for each in self._offsets(before) if each.offset >= 0]
        except ck.KafkaException as error:
            log.warning("commands from before partitions were added cannot be read: %s", error.args[0].str())
            self._lacks_some = True
        self._consumer.assign(begins)
        self._found = {place: [] for place in standing}

    def _offsets(self, times: Mapping[tuple[str, int], int]) -> list[Any]:
        """The first offsets from these times on, all asked at once; -1: nothing is so young. Without partitions of which there is an error."""
        asked = [ck.TopicPartition(*where, at) for where, at in times.items()]
        found = self._consumer.offsets_for_times(asked, timeout=ANSWER_S) if asked else []
        self._lacks_some |= any(each.error is not None for each in found)
        return [each for each in found if each.error is None]

    def _take(self, message: Any) -> None:
        ((headers, record),) = looked_at([message])  # they may not be readable
        destination, reader = self._destinations[message.topic()]
        place, asked = asked_aside(Seen(record, headers), reader) or (None, None)
        # those that are refused are answered by the worker, when it is their turn
        if place in self._found and isinstance(asked, Asked):
            self._found[place].append(AskedOf(destination, message.partition(), asked))

    def close(self) -> None:
        """Closes the consumer."""
        self._found, self._count_at, self._has_counted = {}, 0.0, False
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
