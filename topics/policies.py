"""The settings of a destination as values, with their defaults (`docs/configuration.md`). Pure; reading a file is `uow.config.loading`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from uow.topics.command_keys import WINDOW_MS, CommandKey
from uow.topics.routes import Route, RouteMatching


class HandlingPolicy(StrEnum):
    """Forming units, or passing every record through (W-05, W-64)."""

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
    """Treatment of the held components of an expired group (W-78 to W-81, W-207)."""

    DISCARD = "discard"
    LOG = "log"
    REDIRECT = "redirect"
    DELIVER_PARTIAL = "deliver_partial"


class DuplicatePolicy(StrEnum):
    """Treatment of a resend or an equal duplicate; a conflict is always refused (W-44)."""

    REJECT = "reject"
    DROP_IDENTICAL = "drop_identical"


class Fingerprints(StrEnum):
    """When fingerprints of delivered units are kept, which classify a later duplicate (W-40)."""

    AS_NEEDED = "as_needed"
    ALWAYS = "always"


class ViolationPolicy(StrEnum):
    """Consequence of a violation: the component is refused, or the group fails (W-35, W-39)."""

    REJECT_COMPONENT = "reject_component"
    FAIL_GROUP = "fail_group"


class LatePolicy(StrEnum):
    """Treatment of a component whose group closed incomplete (W-85)."""

    REJECT = "reject"
    REOPEN = "reopen"
    AMEND = "amend"
    """It makes the unit once more, if that was delivered in part (B-205)."""


class Oversize(StrEnum):
    """Treatment of a unit that does not fit into one record (W-115)."""

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


class StrictAttach(StrEnum):
    """A reader of a strict destination for which no partition is left (S-03)."""

    STANDBY = "standby"
    FAIL = "fail"


class StrictTopology(StrEnum):
    """Sends without a key to a strict destination with several partitions (S-21)."""

    REFUSE = "refuse"
    WARN = "warn"


class StrictProducers(StrEnum):
    """The one way of sending to a strict destination (S-24)."""

    TRANSACTED = "transacted"
    PLAIN = "plain"


class ExceptionDestination(StrEnum):
    """Where a reader puts a unit that failed too often (S-14)."""

    ERRORS = "errors"
    NONE = "none"


class OutcomesPolicy(StrEnum):
    """Which closed groups are reported to `D.outcomes` (W-214)."""

    EXCEPTIONS = "exceptions"
    ALL = "all"
    NONE = "none"


class ReconnectPolicy(StrEnum):
    """The objects of a connection that go on after all brokers were gone (R-02, R-03)."""

    NONE = "none"
    """None of them: a loss event ends the connection and all that it made."""
    PRODUCER = "producer"
    """The connection and all that sends. Readers end, and leave their consumer group."""
    ALL = "all"
    """Readers too; browsers never do (R-06)."""


class AliasFamily(StrEnum):
    """Header families of other systems (W-17)."""

    WEBLOGIC = "weblogic"
    JMS = "jms"
    MQ = "mq"
    SPRING = "spring"
    NIFI = "nifi"
    """Its processors that count from 0: SplitJson, SplitRecord, SplitXml, SplitAvro and all that query."""
    NIFI_FROM_1 = "nifi_from_1"
    """Its processors that count from 1: SplitText, SplitContent, UnpackContent."""
    CAMEL = "camel"
    """Integers of 4 or 8 bytes in the `uow-*` headers as well."""


NEVER_MS = -1
"""A time limit that is never reached (W-72)."""
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
    warn_at_percent: int = 0
    duplicate_policy: DuplicatePolicy = DuplicatePolicy.REJECT
    violation_policy: ViolationPolicy = ViolationPolicy.REJECT_COMPONENT
    late_policy: LatePolicy = LatePolicy.REJECT
    amend_max_bytes: int = 16_777_216
    closed_retention_ms: int = 3_600_000
    closed_max_groups: int = 1_000_000
    max_components: int = 1_000_000
    max_run_components: int = 100_000
    max_bytes: int = 67_108_864
    max_headers: int = 1_000
    max_header_name_bytes: int = 65_536
    oversize: Oversize = Oversize.FAIL
    redelivery_limit: int = NO_LIMIT
    routing: Routing = Routing.HASH
    outcomes: OutcomesPolicy = OutcomesPolicy.EXCEPTIONS
    strict_order: bool = False
    strict_attach: StrictAttach = StrictAttach.STANDBY
    strict_group: str = ""
    strict_order_topology: StrictTopology = StrictTopology.REFUSE
    strict_producers: StrictProducers = StrictProducers.TRANSACTED
    strict_priority: int = 4
    strict_block_limit_ms: int = NEVER_MS
    exception_destination: ExceptionDestination = ExceptionDestination.ERRORS
    auto_stop_on_failure: bool = False
    sequential_failure_threshold: int = 1
    concurrency: int = 1
    max_batch_size: int = 1
    receive_exclusive: bool = False
    share_subscription: bool = False
    accept_aliases: frozenset[AliasFamily] = frozenset()
    expiration_log_headers: tuple[str, ...] = ()
    mirror_prefixes: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    route_matching: RouteMatching = RouteMatching.FIRST
    field_source: FieldSource = FieldSource.HEADERS
    fingerprints: Fingerprints = Fingerprints.AS_NEEDED
    command_keys: tuple[CommandKey, ...] = ()
    unsigned_commands: frozenset[str] = frozenset({"manifest"})
    command_window_ms: int = WINDOW_MS

    @property
    def forms_units(self) -> bool:
        """True if records become units; otherwise `D.units` gets every record unchanged (W-65)."""
        return self.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY

    @property
    def tells_duplicates_apart(self) -> bool:
        """True if fingerprints of delivered units are kept: needed where the treatment of a duplicate depends on its case (W-40)."""
        return self.duplicate_policy is DuplicatePolicy.DROP_IDENTICAL or self.fingerprints is Fingerprints.ALWAYS

    @property
    def is_bound_to_count(self) -> bool:
        """True if another partition count would give an open group another partition (W-107)."""
        return self.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY and self.routing is Routing.HASH

    @property
    def refers(self) -> bool:
        """True if a unit may refer to components in `D.components` (W-117)."""
        return self.shape is Shape.REFERENCE or self.oversize is Oversize.REFERENCE

    @property
    def has_external_values(self) -> bool:
        """True if values stay in `D.components` while their group is open (W-117). With `oversize` alone they do not, as most units are envelopes then."""
        return self.shape is Shape.REFERENCE

    @property
    def may_refer(self) -> bool:
        """True if a unit may list where its components are instead of their values: each is one record then, and none comes in pieces."""
        return Shape.REFERENCE in (self.shape, self.oversize.value)

    @property
    def fits_one_record(self) -> bool:
        """True if a unit must fit into one record with all of its content."""
        return self.shape is Shape.ENVELOPE and self.oversize is Oversize.FAIL

    @property
    def may_write_runs(self) -> bool:
        """True if a unit may be written as one record per component, all of them in one transaction."""
        is_oversize = self.shape is Shape.ENVELOPE and self.oversize is Oversize.CONSECUTIVE
        return self.shape is Shape.CONSECUTIVE or is_oversize

    @property
    def sure_components(self) -> int:
        """As many components as a group may have, whatever they weigh."""
        return min(self.max_components, self.max_run_components) if self.may_write_runs else self.max_components

    @property
    def has_paths(self) -> bool:
        """True if there is a path map (W-105)."""
        return self.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY and self.routing is Routing.PATH
