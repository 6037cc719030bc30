"""Changes and effects, as values: a change is written into a group, an effect becomes a record that others read.

Both are closed unions; a `match` over them ends in `assert_never`. Belongs here: the values. Does not belong here: who decides
(`decide`), who applies (`group`), and what an effect looks like on the wire (`uow.processor.engine.outputs`).
"""

from __future__ import annotations

from typing import NamedTuple

from uow.processor.core.gathered import Called, Facts
from uow.schemas.error_classes import InternalError, UowError
from uow.schemas.records import (
    Attributes,
    Range,
    Reason,
    UnitOutcome,
)
from uow.topics.commands import BadCommand, Command
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import Refusal


class Tail(NamedTuple):
    """The part of an end component that its unit takes over (W-90), kept from its arrival; after a restore it is read from the bytes instead.

    Attributes:
        component_id: `uow-component-id`, or None.
        offset: Source offset: the identity where there is no component id.
        properties: Headers the unit takes over: correlation id, priority, user id, type, and the user's own.
        place: `topic/partition/` of the source, where it is not the group's own partition (W-107).
    """

    component_id: bytes | None
    offset: int
    properties: tuple[tuple[str, bytes | None], ...] = ()
    place: bytes | None = None


class Opened(NamedTuple):
    """A group of this id exists from now on; with an order key it is delivered after those of the same key that are open already (W-210).

    With a policy it is a group by rule.
    """

    id: bytes
    generation: int
    at: int
    order_key: bytes = b""
    policy: GroupPolicy | None = None


class Corrected(NamedTuple):
    """The components of a unit that was delivered in part are a group once more, of this generation, for one that came late (B-205)."""

    id: bytes
    generation: int


class Held(NamedTuple):
    """A component was held (line 15).

    Attributes:
        id: Of the group.
        seq: Its number.
        end: Its end mark.
        at: Its append time, epoch ms.
        offset: Its source offset.
        body: Its Avro body.
        attributes: Its headers beyond id, number and end; None for a plain component.
        tail: For an end component, see `Tail`.
        external_bytes: How much longer the body would be with its value, which stays in `D.components` (W-117).
        facts: What it brings to a group by rule.
    """

    id: bytes
    seq: int
    end: bool
    at: int
    offset: int
    body: bytes
    attributes: Attributes | None = None
    tail: Tail | None = None
    external_bytes: int = 0
    facts: Facts | None = None


class HeldPiece(NamedTuple):
    """A piece of a component was held, which is not whole by it (B-124).

    Attributes:
        id: Of the group.
        slot: Under which it is held (`uow.processor.core.segments`).
        at: Its append time, epoch ms.
        offset: Its source offset.
        body: Its Avro body.
    """

    id: bytes
    slot: int
    at: int
    offset: int
    body: bytes


class Amended(NamedTuple):
    """A command changed what counts for an open group (W-203). All of what commands ever said of it, not only the last one.

    Attributes:
        id: Of the group.
        declared_end: The end as declared, 0 for none.
        waived: Numbers that are not needed, those among them that came all the same included.
        extended: Age and idle deadlines are not before this, epoch ms; 0 for none.
    """

    id: bytes
    declared_end: int
    waived: tuple[Range, ...]
    extended: int


class Warned(NamedTuple):
    """It was told what an open group lacks, which happens once (B-202)."""

    id: bytes
    at: int


class Removed(NamedTuple):
    """A command took held components out of an open group (W-76); what the others make of the group now.

    Attributes:
        id: Of the group.
        seqs: Numbers of the components.
        end: The highest number, by end mark, count or command; `UNKNOWN_END` if nothing that is left tells.
        marked: True if an end mark is held.
        last_at: Append time of the last one held, epoch ms.
        expires_at: Earliest `uow-expires-at`, 0 for none.
        deliver_at: Latest `uow-deliver-at`, 0 for none.
    """

    id: bytes
    seqs: tuple[int, ...]
    end: int
    marked: bool
    last_at: int
    expires_at: int
    deliver_at: int


class Erased(NamedTuple):
    """A command erased the payload of one held component (B-216).

    Attributes:
        id: Of the group.
        seq: Number of the component.
        body: What is left of it, as an Avro body.
    """

    id: bytes
    seq: int
    body: bytes


class Waits(NamedTuple):
    """A group by rule is complete, and not allowed to leave yet: its place is free for the next generation of its key (B-104)."""

    id: bytes
    generation: int
    at: int


class Announced(NamedTuple):
    """The manifest of an open group has come: how many replies it has, and until when they are waited for (B-78)."""

    id: bytes
    called: Called


class Closed(NamedTuple):
    """A group closed; what is remembered of it (W-19).

    Attributes:
        id: Of the group.
        generation: Of the group.
        outcome: How it closed.
        reason: Why.
        highest: The unit's end, or the highest number held; 0 when nothing was held.
        before: Input position at that moment: what was held lies before it.
        at: The partition's clock at that moment, epoch ms.
        prints: Of a unit that is not too large: fingerprints of its components. Where senders number them, of a complete one (W-40, B-38).
    """

    id: bytes
    generation: int
    outcome: UnitOutcome
    reason: Reason
    highest: int
    before: int
    at: int
    prints: bytes = b""


Change = Opened | Corrected | Held | HeldPiece | Amended | Warned | Removed | Erased | Waits | Announced | Closed


class Delivered(NamedTuple):
    """The unit goes to `D.units`, or to the target of its row; without all of its components where the outcome is `partial`.

    Attributes:
        closed: How and why.
        command: Who closed it, if a command did.
        decided_at: The partition's clock then, epoch ms; 0: as `closed` says. By time a group closes as of its deadline (B-07).
    """

    closed: Closed
    command: Command | None = None
    decided_at: int = 0


class Undelivered(NamedTuple):
    """The group ends without a unit; its held components, if there are any, go where the policy says, singly and in number order (W-71).

    Attributes:
        closed: How and why.
        error: The class named in `uow-error-class`; `UowError` where a policy and no fault gave it up.
        command: Who closed it, if a command did.
        decided_at: As of `Delivered`.
        fault: The failure of the code at the group, if that is why.
        detail: More about why, for people.
    """

    closed: Closed
    error: type[UowError]
    command: Command | None = None
    decided_at: int = 0
    fault: InternalError | None = None
    detail: str = ""


class Rejected(NamedTuple):
    """The record in hand is refused, and goes to `D.rejected` (W-37)."""

    refusal: Refusal


class Passed(NamedTuple):
    """The record in hand is plain traffic, and goes to `D.units` untouched (line 2)."""


class Rerouted(NamedTuple):
    """The record in hand is sent once more, to the partition its id belongs to (line 6)."""

    partition: int


class Dropped(NamedTuple):
    """The record in hand is a resend or an equal duplicate that policy drops without a record (W-44)."""

    case: str


class TakenOut(NamedTuple):
    """A component leaves its group alone and goes to `D.errors`: by a command, and the group stays open (W-76); or because it is a piece of one that never was whole.

    Attributes:
        body: Its Avro body.
        missing: Numbers that the group lacks without it.
        why: Told to people.
        outcome: How it ends.
        reason: Why, as of a group.
    """

    body: bytes
    missing: tuple[Range, ...]
    why: str
    outcome: UnitOutcome = UnitOutcome.CANCELLED
    reason: Reason = Reason.COMMAND


class DeadlineWarning(NamedTuple):
    """An open group has used up its share of the time that it has, and this is what it lacks (B-202).

    Attributes:
        at: The partition's clock then, epoch ms.
        deadline_at: When it is given up, epoch ms.
        reason: The reason for which it is given up then.
        held: How many components it holds.
        missing: Numbers that it lacks; none where the assembler gives the numbers.
        sources: Sources that its collection still waits for.
    """

    at: int
    deadline_at: int
    reason: Reason
    held: int
    missing: tuple[Range, ...]
    sources: tuple[str, ...]


class Answered(NamedTuple):
    """A record of `D.commands` has its answer (W-203).

    Attributes:
        command: The command, or as much as could be read of it.
        done: True if something was done.
        text: A sentence: the effect, the effect it would have, or the reason why there is none.
        at: Its append time, epoch ms.
        offset: Its offset.
    """

    command: Command | BadCommand
    done: bool
    text: str
    at: int
    offset: int


Effect = Delivered | Undelivered | TakenOut | DeadlineWarning | Rejected | Passed | Rerouted | Dropped | Answered


class Decision(NamedTuple):
    """The meaning of one event: first the changes, in order, then the effects."""

    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()
