"""The input of a run: components, shuffled, doubled, late or wrong, plain records between them, and commands.

Commands are of every verb, for groups that are open, closed, or were never there; some are repeated, and some cannot be read. There are few ids
and small numbers, so that most lines of the decision table meet most states of a group, and enough groups that complete.

Belongs here: records and policies, drawn. Does not belong here: sending them (`simulation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from random import Random

from uow.processor.engine.ports import Headers
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.sim.simulated_kafka import Row
from uow.schemas.records import Range
from uow.topics.catalogue import RECORD_LIMIT_BYTES
from uow.topics.commands import BY_HAND, Command, Verb, command_headers
from uow.topics.headers import (
    ALIASES,
    END,
    ORDER_KEY,
    SEQ,
)
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    DuplicatePolicy,
    ExpirationPolicy,
    Fingerprints,
    HandlingPolicy,
    LatePolicy,
    OutcomesPolicy,
    Oversize,
    Shape,
    ViolationPolicy,
)
from uow.topics.routes import Route
from uow.topics.selector import Selector

HUGE = 1 << 40
_FIRST_VERBS = tuple(verb for verb in BY_HAND if verb is not Verb.ERASE)
"""Those that were drawn before there was another."""
_FAMILIES = (AliasFamily.WEBLOGIC, AliasFamily.JMS, AliasFamily.MQ, AliasFamily.SPRING, AliasFamily.NIFI)
"""Families with names of their own; that NiFi counts from 0 or from 1 is all the same here."""
ALIAS_SHARE = 0.4
"""Share of the runs in which some senders spell their headers as other systems do."""
_ODD: Sequence[Headers] = (
    [],
    [("x", b"1")],
    [("uow-seq", b"1")],
    [("uow-id", b""), ("uow-seq", b"1")],
    [("uow-id", b"\xff"), ("uow-seq", b"1")],
    [("uow-id", b"g1"), ("uoo-name", b"order"), ("uow-seq", b"1")],
    [("uow-id", b"g2")],
    [("uow-id", b"g0"), ("uow-seq", b"x")],
    [("uow-id", b"g1"), ("uow-seq", b"2"), ("uow-end", b"yes")],
    [("uow-id", b"g1"), ("uow-seq", b"1"), ("uow-seq", b"2")],
)
LANES: Mapping[int, str] = {2: "D.large", 1: "D.middle"}
"""The topics to which routes send units of more than so many components, the largest first."""


def lane_of(size: int) -> str | None:
    """The topic of a unit of that many components under routes; None for that of the destination."""
    return next((topic for more_than, topic in LANES.items() if size > more_than), None)


def draw_policy(rnd: Random) -> DestinationPolicy:
    """A destination that forms units; limits small enough to matter in a run of some simulated seconds."""
    aside = copy(rnd)  # dice of their own: what a seed drew before there were any stays as it was
    return DestinationPolicy(
        shape=aside.choice([Shape.ENVELOPE, Shape.ENVELOPE, *Shape]),
        oversize=aside.choice(list(Oversize)),
        fingerprints=aside.choice(list(Fingerprints)),
        routes=aside.choice([(), (), (), tuple(Route(Selector(f"uow-size > {n}"), to) for n, to in LANES.items())]),
        handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY,
        incomplete_expiration_ms=rnd.choice([-1, -1, 300, 2_000, 20_000]),
        idle_expiration_ms=rnd.choice([-1, -1, -1, 200, 5_000]),
        expiration_policy=rnd.choice(list(ExpirationPolicy)),
        duplicate_policy=rnd.choice(list(DuplicatePolicy)),
        violation_policy=rnd.choice([ViolationPolicy.REJECT_COMPONENT, *ViolationPolicy]),
        late_policy=rnd.choice([LatePolicy.REJECT, LatePolicy.REOPEN]),
        closed_retention_ms=rnd.choice([3_600_000, 3_600_000, 3_000]),
        closed_max_groups=rnd.choice([1_000_000, 1_000_000, 3]),
        max_components=rnd.choice([1_000_000, 1_000_000, 4]),
        max_bytes=rnd.choice([67_108_864, 67_108_864, 400]),
        outcomes=rnd.choice(list(OutcomesPolicy)),
        warn_at_percent=aside.choice([0, 0, 60]),
        accept_aliases=frozenset(family for family in _FAMILIES if rnd.random() < 0.1),
    )


def draw_late(policy: DestinationPolicy, late: Random) -> DestinationPolicy:
    """In some runs units that are delivered in part are corrected."""
    is_wanted, most = late.random() < 0.25, late.choice([16_777_216, 16_777_216, 3_000])
    if not is_wanted or policy.may_refer:
        return policy
    return replace(
        policy,
        late_policy=LatePolicy.AMEND,
        amend_max_bytes=most,
        expiration_policy=ExpirationPolicy.DELIVER_PARTIAL,
        incomplete_expiration_ms=300,
    )


def draw_families(aside: Random) -> Sequence[AliasFamily]:
    """The other spellings that some senders of a run use: in most runs none."""
    return aside.sample(_FAMILIES, 2) if aside.random() < ALIAS_SHARE else ()


def spelled(headers: Headers, family: AliasFamily) -> Headers:
    """A component's headers as a sender of another system would write them; those for which it has no name keep ours."""
    words = {meant: name for name, meant in reversed(ALIASES[family].items())}
    return [(words.get(name, name), _foreign(words.get(name, name), name, raw)) for name, raw in headers]


def _foreign(word: str, name: str, raw: bytes | None) -> bytes | None:
    """NiFi counts from 0, MQ ends by a flag bit."""
    if word == name or raw is None:
        return raw
    if name == SEQ and word == "fragment.index":
        return b"%d" % (int(raw) - 1)
    if name == END and word == "mq-msg-flags":
        return b"24" if raw == b"true" else b"8"
    return raw


def draw_record_limit(rnd: Random) -> int:
    """Largest record: none that matters, or one that some envelopes do not fit."""
    return copy(rnd).choice([RECORD_LIMIT_BYTES, RECORD_LIMIT_BYTES, 1_500])


def draw_limits(rnd: Random) -> ReplayLimits:
    """Replay bounds of one worker start: none, wide, or narrow in one respect."""
    return rnd.choice(
        [
            ReplayLimits(),
            ReplayLimits(HUGE, HUGE, HUGE),
            ReplayLimits(rnd.randint(1, 40), HUGE, HUGE),
            ReplayLimits(HUGE, rnd.randint(1, 3_000), HUGE),
            ReplayLimits(HUGE, HUGE, rnd.choice([1, 100, 1_000, 10_000])),
            ReplayLimits(100_000, 64 * 1024 * 1024, 60_000),
        ]
    )


def order_key_of(group_id: bytes) -> bytes:
    """The order key of a group: two of three groups have one, of two keys."""
    line = int(group_id[1:]) % 3
    return b"k%d" % line if line else b""


class Traffic:
    """Records of one run, a group at a time behind a window of open ones.

    Args:
        rnd: Random numbers.
        groups: Number of ids in use at a time.
        ordered: True if two of three groups have an order key (W-210).
        aside: Random numbers for later additions, so that seeds stay as they were.
        families: Other spellings that some senders use.
    """

    def __init__(
        self, rnd: Random, groups: int, *, ordered: bool, aside: Random, families: Sequence[AliasFamily]
    ) -> None:
        self._rnd, self._ordered, self._aside, self._families = rnd, ordered, aside, families
        # dice of their own, so that recorded seeds play what they played
        self._recycles, self._erases = Random(rnd.getstate()[1][0]), Random(rnd.getstate()[1][1])
        self._ids = groups
        self._waiting: list[tuple[bytes, int, bool]] = []
        self._sent: list[tuple[bytes, int, bool]] = []
        self._commands: list[Row] = []
        self._opened = 0

    def next(self, now_ms: int) -> Row:
        """One record."""
        rnd = self._rnd
        dice = rnd.random()
        if dice < 0.05:
            return (rnd.choice([b"key", None, b"g1"]), rnd.choice([b"plain", None]), list(rnd.choice(_ODD)))
        if dice < 0.12 and self._sent:
            return self._row(rnd.choice(self._sent[-30:]), now_ms)
        while len(self._waiting) < 6:
            self._open()
        return self._row(self._waiting.pop(rnd.randrange(len(self._waiting))), now_ms)

    def command(self, now_ms: int) -> Row:
        """One command, or something that should have been one."""
        rnd = self._rnd
        if self._commands and rnd.random() < 0.15:
            return rnd.choice(self._commands[-5:])
        known = [*self._waiting, *self._sent[-6:], (b"g%d" % rnd.randrange(self._ids), 1, False)]
        group_id, seq, _ = rnd.choice(known)
        numbers = (Range(max(1, seq + rnd.randrange(-1, 3)), seq + 2),) if rnd.random() < 0.3 else (Range(seq, seq),)
        command = Command(
            b"c%d" % len(self._commands),
            rnd.choice(_FIRST_VERBS),
            group_id,
            "drawn",
            rnd.choice([None, "Jill"]),
            numbers,
            now_ms + rnd.randrange(-500, 5_000),
            rnd.random() < 0.15,
        )
        if self._recycles.random() < 0.1:  # of a component that has its group, or had one
            at = f"D.components/{self._recycles.randrange(3)}/{self._recycles.randrange(20)}"
            command = command._replace(verb=Verb.RECYCLE, source=at)
        elif self._erases.random() < 0.1:
            command = command._replace(verb=Verb.ERASE)
        headers = command_headers(command)
        if rnd.random() < 0.05:
            del headers[rnd.randrange(len(headers))]
        self._commands.append((group_id, None, headers))
        return self._commands[-1]

    def _open(self) -> None:
        rnd = self._rnd
        self._opened += 1
        number = self._opened if rnd.random() < 0.75 else rnd.randrange(self._ids)
        size = rnd.choice([1, 2, 2, 3, 3, 4, 6])
        for seq in range(1, size + 1):
            if rnd.random() < 0.95:
                self._waiting.append((b"g%d" % number, seq, seq == size))

    def _row(self, component: tuple[bytes, int, bool], now_ms: int) -> Row:
        rnd = self._rnd
        group_id, seq, end = component
        self._sent.append(component)
        if rnd.random() < 0.02:
            seq = rnd.choice([0, seq + 1, 2_147_483_647])
        headers: Headers = [("uow-id", group_id), ("uow-seq", b"%d" % seq)]
        if end:
            headers.append(("uow-end", b"true"))
        if self._ordered and (line := order_key_of(group_id)):
            headers.append((ORDER_KEY, line))
        dice = rnd.random()
        if dice < 0.03:
            headers.append(("uow-deliver-at", b"%d" % (now_ms + rnd.randrange(-50, 3_000))))
        elif dice < 0.06:
            headers.append(("uow-expires-at", b"%d" % (now_ms + rnd.randrange(-50, 3_000))))
        elif dice < 0.09:
            headers.append(("uow-count", b"%d" % rnd.randrange(1, 5)))
        elif dice < 0.25:
            headers.append(("uow-component-id", b"%b-%d" % (group_id, seq)))
        elif dice < 0.30:
            headers.append(("user", rnd.choice([b"said", None])))
        elif dice < 0.32:
            headers.append(("mq-group-id", group_id))
        if self._families and self._aside.random() < 0.5:
            headers = spelled(headers, self._aside.choice(self._families))
        return (group_id, rnd.choice([b"x", b"x", b"y", None, b"long" * 30]), headers)
