"""The check before a worker joins the group: its settings must be those of the workers that live, and those recorded (W-68, W-69).

Belongs here: who lives, waiting, and what a difference then means. Does not belong here: rows and marks (`uow.processor.engine.settings_record`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import confluent_kafka as ck

from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Committed, LogReader, Tp
from uow.processor.engine.restore import restore
from uow.processor.engine.settings_record import (
    RecordedSettings,
    differences,
    mark_in,
    recorded,
)
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.error_classes import Complaint, ConfigError, StateCorruptedError
from uow.schemas.records import SettingsRow
from uow.topics.policies import HandlingPolicy

log = logging.getLogger("uow.worker")

LOOK_AGAIN_S = 0.5
ANSWER_S = 10.0


class ConsumerGroupState:
    """The live members of the consumer group, and its committed offsets.

    Args:
        settings: Settings of this worker.
        tps: Partitions of `D.components` of all destinations.
    """

    def __init__(self, settings: WorkerSettings, tps: Sequence[Tp]) -> None:
        self._settings, self._tps = settings, tps
        self.reader = KafkaLogReader(Clients(settings), stall_ms=settings.restore_stall_ms)
        self._admin = Clients(settings).admin()

    def committed(self) -> Mapping[Tp, Committed]:
        """Committed offsets as they are now: an open transaction that is about to move them makes no difference here."""
        return self.reader.committed(self._tps, "read_uncommitted")

    def others(self) -> int:
        """The number of live members, without a predecessor of our own worker name, which is fenced as we begin."""
        group = self._settings.application_id
        try:
            answer = self._admin.describe_consumer_groups([group], request_timeout=ANSWER_S)[group].result()
        except ck.KafkaException as failure:
            if failure.args[0].code() == ck.KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise
        ours = None if "client.id" in self._settings.kafka else self._settings.transactional_id
        return sum(member.client_id != ours for member in answer.members)


def check_settings(settings: WorkerSettings, contexts: Mapping[str, TaskContext]) -> dict[str, TaskContext]:
    """The contexts of a worker that may join.

    Raises:
        ConfigError: See `checked_contexts`.
    """
    tps = [Tp(topic, number) for topic, context in contexts.items() for number in range(context.partitions)]
    group = ConsumerGroupState(settings, tps)
    try:
        return checked_contexts(
            contexts, group.reader, group.committed, group.others, _turns(1.5 * settings.session_timeout_ms / 1000)
        )
    finally:
        group.reader.close()


def _turns(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(LOOK_AGAIN_S)


def checked_contexts(
    contexts: Mapping[str, TaskContext],
    reader: LogReader,
    committed: Callable[[], Mapping[Tp, Committed]],
    others: Callable[[], int],
    turns: Iterable[None],
) -> dict[str, TaskContext]:
    """The contexts, each with the settings to be recorded.

    Args:
        contexts: By name of `D.components`.
        reader: Reads rows and groups.
        committed: Returns the committed offsets of every partition.
        others: Returns the number of other live workers.
        turns: One for each look, as long as another worker lives and something differs: a worker that was killed is counted until its
            session ends, and one that has just begun with our settings has not recorded them yet.

    Raises:
        ConfigError: Another worker with other settings lives (W-68), or groups are open that `pass_through` would leave behind (W-69).
    """
    ours = {topic: RecordedSettings.of(context.destination, context.policy) for topic, context in contexts.items()}
    other: dict[Tp, str | None] = {}
    alive = 0
    for _ in turns:
        there = {tp: mark_in(each.metadata) for tp, each in committed().items() if each.offset is not None}
        other = {tp: mark for tp, mark in there.items() if mark != ours[tp.topic].mark}
        alive = others() if any(other.values()) else 0
        if not alive:
            break
    complaints: list[Complaint] = []
    for topic, context in contexts.items():
        examples = {mark: tp for tp, mark in other.items() if tp.topic == topic and mark is not None}
        for tp in examples.values():
            complaints += _objections(
                ours[topic], recorded(reader, Tp(context.topics.groups_changelog, tp.partition)), alive
            )
        ours[topic] = replace(ours[topic], replaces=frozenset(examples))
    for topic, context in contexts.items():
        if context.policy.handling_policy is HandlingPolicy.PASS_THROUGH and not complaints:
            complaints += _left_behind(context, reader, [tp for tp in other if tp.topic == topic])
    if complaints:
        raise ConfigError.many(dict.fromkeys(complaints))
    return {topic: replace(context, recorded_settings=ours[topic]) for topic, context in contexts.items()}


def _objections(ours: RecordedSettings, theirs: SettingsRow, alive: int) -> Iterator[Complaint]:
    """The complaint about each difference while another worker lives. If none does, each is logged."""
    for each in differences(theirs, ours.row):
        if alive:
            yield each.complaint(
                ours.destination, f"{alive} other worker{'s of the group live' if alive > 1 else ' of the group lives'}"
            )
        else:
            log.warning(
                "destination %s: %s was %s, and is %s from now on",
                ours.destination,
                each.name,
                each.recorded,
                each.ours,
            )


def _left_behind(context: TaskContext, reader: LogReader, tps: Sequence[Tp]) -> Iterator[Complaint]:
    """The complaint about open groups that other settings have left: under `pass_through` no worker would close them (W-69)."""
    count = 0
    for tp in tps:
        with suppress(StateCorruptedError):  # such a partition is blocked, with its cause, once it is assigned
            count += len(restore(reader, {tp.topic: context}, [tp])[tp].groups)
    if count:
        rule = (
            f"{count} groups are open and would never be closed: start workers with {HandlingPolicy.SINGLE_MESSAGE_DELIVERY}, close "
            f"the groups (`uow release|cancel|expire {context.destination} --all --why ...`), then change it"
        )
        yield Complaint(
            f"destinations.{context.destination}.handling_policy", context.policy.handling_policy.value, rule
        )
