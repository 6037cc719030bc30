"""The rules in force: the latest version that every worker can start with, kept while the source is away (B-10 to B-12, B-15 to B-17).

An invalid version takes no effect; the latest valid one before it holds. No version is followed by an earlier one: at a start the mirror tells
the latest that was in force, and serves where the source is away or behind it. If that one has faults by now, or there is none without, what is
wrong stops only the routers that it concerns (`deployment.py`). Without any version the built-in row serves, if that is allowed.

Belongs here: that choice. Does not belong here: the check (`deployment.py`), reading a source (`store.py`), the mirror `A-rules`, threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from uow.processor.rules.changes import RulesUnavailable
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.rule_set import Content, RuleSet, RuleTables
from uow.processor.rules.store import RuleSource
from uow.schemas.error_classes import Complaint, ConfigError, shown
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import DEFAULT_ROW, Change, DefaultGroup, OnNoKey, Row, Rule

log = logging.getLogger("uow.rules")

LOOK_S: Final = 10.0
"""Longest wait for a look that somebody asked for."""
_STEP_S: Final = 0.05
LOGGED_EVERY_S: Final = 60.0
"""A source that stays away is named once in this time."""
_BACK: Final = 100
"""Versions that are looked at for one that is valid."""
DEFAULT_RULE: Final = "default"
"""Id of the built-in rules: `default`, and `default.DESTINATION` where there are several."""

Check = Callable[[RuleSet], Sequence[Complaint]]


class RuleMirror(Protocol):
    """The rules as routers wrote them to `A-rules`."""

    def tables(self) -> RuleTables | None:
        """The latest set; None if there is none."""
        ...


@dataclass(slots=True)
class RuleStatus:
    """Figures for metrics.

    Attributes:
        version: The version in force.
        seen_at_s: When the source was last read, by the clock of `RulesInForce`; None if it never was.
        rejected: Versions that took no effect.
        errors: Looks that ended with an error that nobody foresaw; the log has it.
        complaints: About the latest version that took no effect, until a valid one comes.
    """

    version: int = 0
    seen_at_s: float | None = None
    rejected: int = 0
    errors: int = 0
    complaints: tuple[Complaint, ...] = ()


@dataclass(slots=True)
class RulesInForce:
    """The rules in force, from one source. For one thread; what it gives is never changed.

    Args:
        source: Where they are.
        check: Complaints about a set.
        refresh_ms: Between two looks.
        mirror: Serves where the source cannot be read at the start.
        defaults: Rules for where neither can; None refuses to start.
        monotonic: Seconds, from anywhere.
    """

    source: RuleSource
    check: Check
    refresh_ms: int = 10_000
    mirror: RuleMirror | None = None
    defaults: RuleTables | None = None
    monotonic: Callable[[], float] = time.monotonic
    rules: RuleSet = field(default_factory=lambda: RuleSet(RuleTables()))
    status: RuleStatus = field(default_factory=RuleStatus)
    _seen: RuleTables = field(default_factory=RuleTables)
    _least: int = 1
    """The lowest version that may be taken: nothing earlier than what is in force."""
    _faulty: RuleSet | None = None
    """The set that it began with, if that has faults; no later one has any."""
    _wrong: str = ""
    _logged_at: float | None = None

    def start(self) -> RuleSet:
        """The rules to begin with.

        Raises:
            ConfigError: There are none at all, neither in the source nor in the mirror, and defaults are not allowed.
        """
        self.look()
        kept = self.mirror.tables() if self.mirror is not None else None
        found = self.rules.version
        is_other = kept is not None and kept.version == found and RuleSet(kept).content() != self.rules.content()
        if is_other and kept is not None and _differ_in_former_defaults(kept, self.rules.tables):
            text = (
                "rules: version %d of %s differs in default_group and on_no_key from what was in force, whose defaults were others once: that stays. "
                'The next version of the file has today\'s defaults where it does not say default_group = "shared", on_no_key = "default"'
            )
            log.warning(text, found, self.source.name)
            self._take(RuleSet(kept), kept.version + 1)
        elif is_other:
            text = (
                "rules: version %d of %s is not the one that was in force before: raise its version with every change"
            )
            log.error(text, found, self.source.name)
        if kept is not None and kept.version > found:
            if self._seen.version:
                text = "rules: the latest valid version of %s is %d; version %d was in force, and stays"
                log.warning(text, self.source.name, found, kept.version)
            self._take(RuleSet(kept), kept.version)
        elif not found and self._seen.version:
            self._take(RuleSet(self._seen), self._seen.version + 1)
        elif not found and self.defaults is not None:
            self._take(RuleSet(self.defaults), 1)
        elif not found:
            complaints = "; ".join(map(str, self.status.complaints)) or self._wrong or "there are none"
            rule = f"no rules to start with, and no mirror of any: {complaints[:1_000]} (rules.allow_defaults starts without)"
            raise ConfigError("rules.source", self.source.name, rule)
        if self.rules.version != found and (faults := self._complaints(self.rules)):
            self.status.complaints, self._faulty = tuple(faults), self.rules
            text = "rules: version %d has faults, and what they concern waits: %s"
            log.error(text, self.rules.version, "; ".join(map(str, faults))[:2_000])
        return self.rules

    def _take(self, rules: RuleSet, least: int) -> None:
        """Puts rules in force; `least` is the lowest version that may follow."""
        self.rules, self._least = rules, least
        self.status.version = rules.version

    def _complaints(self, rules: RuleSet) -> Sequence[Complaint]:
        """Of the check; a check that cannot be made now is a complaint."""
        try:
            return self.check(rules)
        except RulesUnavailable as error:
            return [Complaint("rules.version", rules.version, f"cannot be checked now: {error}")]

    def look(self) -> None:
        """Looks at the source now. Whatever goes wrong, the version in force stays."""
        now = self.monotonic()
        try:
            version = self.source.version()
            if version > self._seen.version:
                seen = self.source.read(self._seen)
                self._choose(seen)
                self._seen = seen
            if self._least > 1 and version < self.rules.version:
                self._told(f"{self.source.name} is at version {version}, an earlier one, which is not taken")
        except RulesUnavailable as error:
            self._told(str(error))
        except WrongRows as error:
            if str(error) != self._wrong:  # a file, which is read again only when it changes
                self.status.rejected += 1
                self.status.complaints = error.complaints
            self._told(str(error))
        except Exception as error:  # noqa: BLE001 - the boundary to what others wrote: the thread that follows must survive
            self.status.errors += 1
            self._told(f"they cannot be looked at: {shown(error)}", exc_info=True)
        else:
            self._wrong = ""
            self.status.seen_at_s = now

    def is_faulty(self, rules: RuleSet) -> bool:
        """True of a set that is in force although it has faults; for any thread."""
        return rules is self._faulty

    @property
    def read(self) -> RuleTables:
        """All that was read of the source so far, valid or not; for any thread."""
        return self._seen

    @property
    def age_s(self) -> float | None:
        """Seconds since the source was last read; None if it never was."""
        return None if self.status.seen_at_s is None else self.monotonic() - self.status.seen_at_s

    def _choose(self, seen: RuleTables) -> None:
        """Puts the latest valid version in force, unless that is an earlier one than now."""
        found = valid(seen, self.check, above=max(self._seen.version, self._least - 1))
        for version, complaints in found.rejected.items():
            log.warning("rules: version %d takes no effect: %s", version, "; ".join(map(str, complaints))[:2_000])
            self.status.rejected += 1
        if found.rules.version:
            self._take(found.rules, found.rules.version + 1)
        self.status.complaints = tuple(found.rejected.get(seen.version, ()))

    def _told(self, wrong: str, *, exc_info: bool = False) -> None:
        self._wrong = wrong
        now = self.monotonic()
        if self._logged_at is None or now - self._logged_at >= LOGGED_EVERY_S:
            self._logged_at = now
            text = "rules: version %d stays in force: %s"
            log.warning(text, self.rules.version, wrong[:2_000], exc_info=exc_info)


def _differ_in_former_defaults(kept: RuleTables, read: RuleTables) -> bool:
    """True if all that differs are columns that have today's default where they had the former one."""
    if _of_defaults(kept) != _of_defaults(read):
        return False
    before = {(rule.rule_id, rule.version): rule for rule in kept.rules}
    pairs = [(before.get((rule.rule_id, rule.version), rule), rule) for rule in read.rules]
    return all(
        _is_same_or_was(was.default_group, now.default_group, DefaultGroup.SHARED, DefaultGroup.PER_NAME)
        and _is_same_or_was(was.on_no_key, now.on_no_key, OnNoKey.DEFAULT, OnNoKey.BY_KEY)
        for was, now in pairs
    )


def _is_same_or_was(was: object, now: object, former: object, default: object) -> bool:
    return was == now or (was, now) == (former, default)


def _of_defaults(tables: RuleTables) -> Content:
    """All that is in force, with today's defaults in the columns whose defaults were others once (decision 122)."""
    default = Rule("", 0, "")
    rules = [replace(rule, default_group=default.default_group, on_no_key=default.on_no_key) for rule in tables.rules]
    return RuleSet(replace(tables, rules=tuple(rules))).content()


class Valid(NamedTuple):
    """The result of a search for a valid version.

    Attributes:
        rules: The latest valid version; one without rules if there is none.
        rejected: Complaints about the versions after it.
    """

    rules: RuleSet
    rejected: Mapping[int, Sequence[Complaint]]


def valid(tables: RuleTables, check: Check, above: int = 0) -> Valid:
    """The latest version above another that a check has no complaint about, of the last hundred."""
    versions = sorted((each.version for each in tables.changes if each.version > above), reverse=True)
    rejected: dict[int, Sequence[Complaint]] = {}
    for version in versions[:_BACK]:
        rules = RuleSet(tables.until(version))
        complaints = check(rules)
        if not complaints:
            return Valid(rules, rejected)
        rejected[version] = complaints
    return Valid(RuleSet(RuleTables()), rejected)


class RuleFollower:
    """Looks at the source in a thread of its own, each `refresh_ms` (B-10): a database that does not answer holds up nobody who routes.

    Args:
        in_force: The rules, which this thread has for itself from now on.
        asked: Set when somebody wants a look before the time.
    """

    def __init__(self, in_force: RulesInForce, asked: threading.Event | None = None) -> None:
        self._in_force = in_force
        self._asked = asked or threading.Event()
        self._is_stopping = False
        self._begun = self._ended = 0
        self._thread = threading.Thread(target=self._run, name="uow-rules", daemon=True)
        self._thread.start()

    @property
    def rules(self) -> RuleSet:
        """The rules in force; for any thread."""
        return self._in_force.rules

    @property
    def read(self) -> RuleTables:
        """All that was read of the source so far; for any thread."""
        return self._in_force.read

    def is_faulty(self, rules: RuleSet) -> bool:
        """True of a set that is in force although it has faults; for any thread."""
        return self._in_force.is_faulty(rules)

    @property
    def has_all_versions(self) -> bool:
        """True if the source keeps every version that it ever had."""
        return self._in_force.source.has_all_versions

    @property
    def status(self) -> RuleStatus:
        """Figures for metrics; for any thread."""
        return self._in_force.status

    def refresh(self) -> None:
        """Makes it look now (B-12)."""
        self._asked.set()

    def look(self, meanwhile: Callable[[], object]) -> None:
        """Makes it look now, and waits for that, not for ever; for any thread.

        Args:
            meanwhile: Called while it waits.
        """
        number, until = self._begun + 1, time.monotonic() + LOOK_S
        self.refresh()
        while self._ended < number and time.monotonic() < until:
            meanwhile()
            time.sleep(_STEP_S)

    def stop(self) -> None:
        """Ends the thread after the look that it is at."""
        self._is_stopping = True
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            self._asked.wait(self._in_force.refresh_ms / 1_000)
            self._asked.clear()
            if not self._is_stopping:
                self._begun += 1
                self._in_force.look()
                self._ended = self._begun


def default_rules(destinations: Mapping[str, DestinationPolicy]) -> RuleTables:
    """The built-in rules (B-17): row `*` with `D.units`, 10 components and 60 s, for each destination that forms units."""
    names = sorted(name for name, policy in destinations.items() if policy.forms_units)
    ids = [DEFAULT_RULE if len(names) == 1 else f"{DEFAULT_RULE}.{name}"[:64] for name in names]
    return RuleTables(
        (Change(1, "uow", "built-in rules", 0),),
        tuple(Rule(rule_id, 1, name) for rule_id, name in zip(ids, names, strict=True)),
        tuple(Row(rule_id, DEFAULT_ROW, 1, complete_count=10, age_ms=60_000) for rule_id in ids),
    )
