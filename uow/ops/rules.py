"""The rules of the configured source, for commands: read, checked, changed (B-11, B-15, B-19, B-214).

Belongs here: what `uow rules` does. Does not belong here: printing (`uow.cli`), rows and versions (`uow.processor.rules`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from uow.config.loading import Settings
from uow.ops.destination_logs import PATIENCE_S, NoAnswerError, counts_with, log_reader
from uow.ops.rehearsal import Figures, recorded, rehearsed
from uow.processor.engine.ports import Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.rule_topics import deployment
from uow.processor.rules.changes import CannotChange, Difference, RulesUnavailable, differences, rows_for
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.deployment import Deployment
from uow.processor.rules.in_force import valid
from uow.processor.rules.possible import complaints_about_closing
from uow.processor.rules.reach import complaints_about_reach
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.rules.store import RuleDatabase, RuleFile, rule_source
from uow.processor.rules.transforms import installed
from uow.schemas.error_classes import Complaint, ConfigError, UowError
from uow.topics.admin import admin_client
from uow.topics.catalogue import RULES_PARTITION, rules_topic
from uow.topics.rules import REFRESH_KEY, Change

log = logging.getLogger(__name__)

_quiet = logging.getLogger("uow.rules.asked")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False
ANSWERS_WITHIN_S: Final = 3.0
"""For so long brokers are waited for that are asked for records to try: rules are checked without them as well."""
LAST_TRIED: Final = 20
"""So many records of each partition of the inputs are tried under rules that are checked."""


class Version(NamedTuple):
    """A version in the history.

    Attributes:
        change: Its author, reason and time.
        complaints: Why it took no effect; empty if it did.
        differences: From the version before, whether that took effect or not.
    """

    change: Change
    complaints: Sequence[Complaint]
    differences: Sequence[Difference]


@dataclass(frozen=True, slots=True)
class RuleDesk:
    """The configured rules.

    Args:
        settings: The configuration.
    """

    settings: Settings

    def source(self) -> RuleDatabase | RuleFile:
        """The configured source.

        Raises:
            ConfigError: None is configured, or it cannot be one.
        """
        source = self.settings.rules.source
        if not source:
            raise ConfigError("rules.source", "", "names no rules: a database URL or the path of a TOML file")
        try:
            return rule_source(source)
        except ValueError as error:
            raise ConfigError("rules.source", self.settings.effective["rules.source"].shown, str(error)) from None

    def read(self) -> RuleSet:
        """All versions of the source; none if its tables are not made yet.

        Raises:
            ConfigError: Rows that are none.
            RulesUnavailable: It cannot be read.
        """
        source = self.source()
        if isinstance(source, RuleDatabase) and not source.is_made():
            return RuleSet(RuleTables())
        try:
            return RuleSet(source.read(RuleTables()))
        except WrongRows as error:
            raise ConfigError.many(error.complaints) from None

    def complaints(self, rules: RuleSet) -> list[Complaint]:
        """All that would keep a worker from starting with these rules; of target topics only if a broker answers."""
        return self._judge().complaints(rules)

    def never_closing(self, rules: RuleSet) -> list[Complaint]:
        """Conditions in the rows of the latest version by which no group closes: mistakes, but workers go on by rows that have them."""
        return [*complaints_about_closing(rules, self.settings.destinations)]

    def never_reached(self, rules: RuleSet) -> list[Complaint]:
        """Rules of the latest version to which the configured routers bring no record. Others may, so such a version can be put in force."""
        return [*complaints_about_reach(rules, self.settings.routers)]

    def _judge(self, transforms: Callable[[], Collection[str] | None] = installed) -> Deployment:
        """The check that workers make, as far as it can be made here."""
        judge = deployment(self.settings.worker("rules"), transforms)

        @cache
        def partitions() -> Mapping[str, int]:
            try:
                return judge.partitions()
            except RulesUnavailable as error:
                log.warning("rules: %s", error)
                return {}

        return replace(judge, partitions=partitions)

    def _as_known(self) -> Deployment:
        """The same without transforms, which may be installed where workers are, and not here."""
        return self._judge(lambda: None)

    def in_force(self, rules: RuleSet) -> RuleSet:
        """The latest version without faults; the latest one if there is none, since workers go on by it as far as they can."""
        found = valid(rules.tables, self._as_known().complaints).rules
        return found if found.version else rules

    def faults(self, rules: RuleSet) -> list[Complaint]:
        """Those of `complaints` that can be told from here."""
        return self._as_known().complaints(rules)

    def held(self, rules: RuleSet) -> dict[str, str]:
        """The routers that hold their inputs under these rules, with the reason."""
        return self._as_known().held(rules)

    def history(self, rules: RuleSet) -> Iterator[Version]:
        """All versions, the latest first."""
        judged = self._as_known()
        changes = sorted(rules.tables.changes, key=lambda change: change.version)
        for change, earlier in reversed([*zip(changes, [None, *changes], strict=False)]):
            at, before = rules.as_of(change.version), rules.as_of(earlier.version if earlier else 0)
            yield Version(change, judged.complaints(at), list(differences(before, at)))

    def proposed(self, path: Path, current: RuleSet, author: str, why: str, now_ms: int) -> RuleTables:
        """The rows with which a file would become the next version.

        Args:
            path: The file, a whole set.
            current: The rules as they are.
            author: In place of the file's, if it is given.
            why: The same.
            now_ms: Time of the change, epoch ms.

        Raises:
            ConfigError: The file has mistakes; all of them are named.
            CannotChange: It is not made of the present version, or nothing differs.
        """
        wanted = self.file(path, now_ms)
        (change,) = wanted.tables.changes
        if change.version != current.version + 1:
            raise CannotChange(
                f"{path} is version {change.version}, and the rules are at {current.version}: "
                f"look at what has changed (`uow rules show --toml`), then say version = {current.version + 1}"
            )
        made = rows_for(
            current, wanted, Change(change.version, author or change.author, why or change.why, change.changed_at_ms)
        )
        rules = RuleSet(current.tables.with_rows_of(made))
        self._must_be_valid(rules)
        if complaints := self.never_closing(rules):
            raise ConfigError.many(complaints)
        return made

    def file(self, path: Path, now_ms: int) -> RuleSet:
        """The rules in a file.

        Raises:
            ConfigError: They cannot be read; all mistakes are named.
        """
        from uow.processor.rules.rule_file import read_rules

        try:
            return RuleSet(read_rules(path.read_text("utf-8"), now_ms))
        except WrongRows as error:
            raise ConfigError.many(error.complaints) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("file", str(path), str(getattr(error, "strerror", None) or error)) from None

    def reverted(self, version: int, current: RuleSet, author: str, why: str, now_ms: int) -> RuleTables:
        """The rows with which the rules become as they were at a version, in a new one.

        Raises:
            CannotChange: There is no such version, or nothing differs.
            ConfigError: That version is not valid.
        """
        if version not in {change.version for change in current.tables.changes}:
            raise CannotChange(f"there is no version {version}; `uow rules history` lists them")
        change = Change(current.version + 1, author, why, now_ms, version)
        made = rows_for(current, current.as_of(version), change)
        self._must_be_valid(RuleSet(current.tables.with_rows_of(made)))
        return made

    def put(self, made: RuleTables, current: RuleSet) -> None:
        """Writes a version.

        Raises:
            CannotChange: The source is a file, or somebody else was faster.
        """
        source = self.source()
        if isinstance(source, RuleFile):
            raise CannotChange(f"the rules are in {source.name}: change the file, and raise its version")
        source.create()
        source.put(made, after=current.version)

    def refresh(self) -> None:
        """Makes every router look at the source now (B-12), by a record in `A-rules`.

        Raises:
            NoAnswerError: The topic does not exist, or no broker took the record in time.
        """
        settings = self.settings
        topic = rules_topic(settings.application_id)
        counts_with(settings, topic)
        producer = Clients(settings.worker("rules")).path_producer()
        told: list[object] = []
        producer.produce(
            topic, key=REFRESH_KEY, partition=RULES_PARTITION, on_delivery=lambda error, message: told.append(error)
        )
        producer.flush(PATIENCE_S)
        if told != [None]:
            raise NoAnswerError(f"{topic}: {told[0] if told else 'no broker took the record in time'}")

    def rehearsal(
        self, path: Path, from_ms: int, limit: int, patience_s: float, now_ms: int
    ) -> tuple[Figures, Figures]:
        """The results of the recorded inputs of all routers, under the rules in force and under those of a file (B-204). Reads only.

        Args:
            path: The file, a whole set.
            from_ms: Records appended before are left out, epoch ms.
            limit: Most records.
            patience_s: Longest time for reading them.
            now_ms: The present moment.

        Raises:
            ConfigError: There are no routers, or the file has mistakes.
            NoAnswerError: An input does not exist, or Kafka does not answer in time.
            TooManyRecords: There are more than `limit`.
        """
        settings = self.settings
        if not settings.routers:
            raise ConfigError("routers", "", "there are no routers, whose inputs could be played")
        wanted, present = self.file(path, now_ms), self.in_force(self.read())
        self._must_be_valid(wanted)
        inputs = sorted({topic for router in settings.routers.values() for topic in router.inputs})
        counts = counts_with(settings, *inputs)
        tps = [Tp(topic, number) for topic in inputs for number in range(counts[topic])]
        with log_reader(settings, patience_s) as reader:
            records = recorded(reader, tps, from_ms, limit)
        destinations, application = settings.destinations, settings.application_id
        before, after = (
            rehearsed(records, rules, settings.routers, destinations, application) for rules in (present, wanted)
        )
        return before, after

    def keyless(self, rules: RuleSet) -> Counter[tuple[str, str]]:
        """Records without a routing name among the last ones of all inputs, by rule and reason; none if no broker tells of them."""
        settings = self.settings
        inputs = sorted({topic for router in settings.routers.values() for topic in router.inputs})
        if not inputs:
            return Counter()
        client = admin_client(settings.bootstrap_servers, settings.kafka, _quiet)
        try:
            topics = client.list_topics(timeout=ANSWERS_WITHIN_S).topics
            tps = [Tp(topic, number) for topic in inputs if topic in topics for number in topics[topic].partitions]
            with log_reader(settings) as reader:
                bounds = reader.stable_bounds(tps)
                last = {tp: (max(start, end - LAST_TRIED), end) for tp, (start, end) in bounds.items()}
                records = [record for _, some in reader.read(last) for record in some]
        except (UowError, KafkaException) as error:
            log.warning("rules: no recorded record is tried: %s", error)
            return Counter()
        return rehearsed(records, rules, settings.routers, settings.destinations, settings.application_id).keyless

    def _must_be_valid(self, rules: RuleSet) -> None:
        """Raises `ConfigError` with all complaints, and `RulesUnavailable` if no broker can be asked about target topics."""
        complaints = deployment(self.settings.worker("rules")).complaints(rules)
        if complaints:
            raise ConfigError.many(complaints)
