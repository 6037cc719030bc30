"""What a destination is told to do: its settings as values, with their defaults (contract section 6). Pure; reading a file is `uow.config`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topics.routes import Route, RouteMatching


class HandlingPolicy(StrEnum):
    """Whether a destination forms units (W-05, W-64)."""

    PASS_THROUGH = "pass_through"
    SINGLE_MESSAGE_DELIVERY = "single_message_delivery"


class Shape(StrEnum):
    """How a unit is written."""

    ENVELOPE = "envelope"
    CONSECUTIVE = "consecutive"
    REFERENCE = "reference"


class ValueFormat(StrEnum):
    """Encoding of a unit's value (W-95)."""

    AVRO = "avro"
    JSON = "json"
    XML = "xml"


class ExpirationPolicy(StrEnum):
    """What becomes of the held components of an expired group (W-78 to W-81, W-207)."""

    DISCARD = "discard"
    LOG = "log"
    REDIRECT = "redirect"
    DELIVER_PARTIAL = "deliver_partial"


class DuplicatePolicy(StrEnum):
    """What becomes of a resend or an equal duplicate; a conflict is always refused (W-44)."""

    REJECT = "reject"
    DROP_IDENTICAL = "drop_identical"


class Fingerprints(StrEnum):
    """Where fingerprints of delivered units are kept, by which a later component is told apart (W-40)."""

    AS_NEEDED = "as_needed"
    ALWAYS = "always"


class ViolationPolicy(StrEnum):
    """Whether a violation costs the component or the group (W-35, W-39)."""

    REJECT_COMPONENT = "reject_component"
    FAIL_GROUP = "fail_group"


class LatePolicy(StrEnum):
    """What a component of a group closed otherwise than complete meets (W-85)."""

    REJECT = "reject"
    REOPEN = "reopen"


class Oversize(StrEnum):
    """What becomes of a unit that does not fit one record (W-115)."""

    FAIL = "fail"
    CONSECUTIVE = "consecutive"
    REFERENCE = "reference"


class Routing(StrEnum):
    """How a component finds its partition (W-104, W-105)."""

    HASH = "hash"
    PATH = "path"


class FieldSource(StrEnum):
    """Where id, number and end mark are read (W-24)."""

    HEADERS = "headers"
    VALUE = "value"


class OutcomesPolicy(StrEnum):
    """Which closed groups are reported to `D.outcomes` (W-214)."""

    EXCEPTIONS = "exceptions"
    ALL = "all"
    NONE = "none"


class AliasFamily(StrEnum):
    """Header families of other systems (contract section 3, W-17)."""

    WEBLOGIC = "weblogic"
    JMS = "jms"
    MQ = "mq"
    SPRING = "spring"
    NIFI = "nifi"


NEVER_MS = -1
"""A limit that never passes (W-72)."""
NO_LIMIT = -1
"""Any number of redeliveries (W-87)."""


@dataclass(frozen=True, slots=True)
class DestinationPolicy:
    """The settings of `[destinations.D]`. Durations in milliseconds, sizes in bytes; -1 means never where the name ends in `_expiration_ms`."""

    handling_policy: HandlingPolicy = HandlingPolicy.PASS_THROUGH
    shape: Shape = Shape.ENVELOPE
    value_format: ValueFormat = ValueFormat.AVRO
    incomplete_expiration_ms: int = NEVER_MS
    expiration_policy: ExpirationPolicy = ExpirationPolicy.DISCARD
    idle_expiration_ms: int = NEVER_MS
    duplicate_policy: DuplicatePolicy = DuplicatePolicy.REJECT
    violation_policy: ViolationPolicy = ViolationPolicy.REJECT_COMPONENT
    late_policy: LatePolicy = LatePolicy.REJECT
    closed_retention_ms: int = 3_600_000
    closed_max_groups: int = 1_000_000
    max_components: int = 1_000_000
    max_bytes: int = 67_108_864
    max_headers: int = 1_000
    max_header_name_bytes: int = 65_536
    oversize: Oversize = Oversize.FAIL
    redelivery_limit: int = NO_LIMIT
    routing: Routing = Routing.HASH
    outcomes: OutcomesPolicy = OutcomesPolicy.EXCEPTIONS
    strict_order: bool = False
    accept_aliases: frozenset[AliasFamily] = frozenset()
    expiration_log_headers: tuple[str, ...] = ()
    mirror_prefixes: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    route_matching: RouteMatching = RouteMatching.FIRST
    field_source: FieldSource = FieldSource.HEADERS
    fingerprints: Fingerprints = Fingerprints.AS_NEEDED

    @property
    def forms_units(self) -> bool:
        """Whether records become units; where they do not, `D.units` has what came, as it came (W-65)."""
        return self.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY

    @property
    def tells_duplicates_apart(self) -> bool:
        """Whether fingerprints of delivered units are kept: needed where the kind of a duplicate decides what becomes of it (W-40)."""
        return self.duplicate_policy is DuplicatePolicy.DROP_IDENTICAL or self.fingerprints is Fingerprints.ALWAYS

    @property
    def is_bound_to_count(self) -> bool:
        """Whether another partition count would give an open group another partition (W-107)."""
        return self.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY and self.routing is Routing.HASH

    @property
    def refers(self) -> bool:
        """Whether a unit may need components that stayed in `D.components` (W-117)."""
        return self.shape is Shape.REFERENCE or self.oversize is Oversize.REFERENCE

    @property
    def leaves_values(self) -> bool:
        """Whether values stay in `D.components` while their group is open (W-117). Not by `oversize`: most units are envelopes there."""
        return self.shape is Shape.REFERENCE

    @property
    def fits_one_record(self) -> bool:
        """Whether a unit must fit one record with all of its content."""
        return self.shape is Shape.ENVELOPE and self.oversize is Oversize.FAIL

    @property
    def has_paths(self) -> bool:
        """Whether there is a path map (W-105)."""
        return self.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY and self.routing is Routing.PATH
