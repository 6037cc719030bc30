"""Tracing across hops: one trace per unit, a span per component and hop, in W3C's headers `traceparent` and `tracestate` (W-213).

The headers travel like all others, whoever put them there, and a unit has those of its end component. A connection that is given `on_span`
takes part: each component that it sends or forwards gets a span of its own, the child of the one it came with, and the callback gets it. Without it the
headers stay as they are, as W3C wants it of those who record nothing.

A component that comes without a trace belongs to the trace that its group id names, so that all producers of a unit share one.

Belongs here: the context on the wire, and spans as values. Does not belong here: exporting them; `on_span` may hand them to OpenTelemetry.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from uow.client.outgoing import OutgoingRecord
from uow.topics.headers import Marks, Reading

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_CONTEXT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII
)
"""Trace, span and flags; what a later version may add behind them is left out."""


@dataclass(frozen=True, slots=True)
class Span:
    """One step of one component: it was sent, or forwarded, to a topic.

    Attributes:
        trace_id: 32 hexadecimal digits, the same for all components of a unit.
        span_id: 16 hexadecimal digits.
        parent_id: The span it came with; None where the trace begins.
        topic: Where the component goes.
        id: Its group id.
        seq: Its number.
        component_id: Its `uow-component-id`, by which an `Outcome` names the one that arrived last; None where it has none.
        at: When it was handed to the producer, epoch ms; its transaction may still be rolled back.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    topic: str
    id: str
    seq: int
    component_id: str | None
    at: int


class Tracer:
    """Gives each component that leaves a span, and tells of it.

    Args:
        on_span: Told of each span, on the thread that sends.
        reading: How a record's headers are read: what is no component has no span.
    """

    def __init__(self, on_span: Callable[[Span], object], reading: Reading) -> None:
        self._on_span = on_span
        self._reading = reading

    def step(self, record: OutgoingRecord) -> None:
        """Puts a new span into a record's headers in the place of the one it has; a trace that cannot be read begins anew."""
        marks = self._reading.read(record.headers)
        if not isinstance(marks, Marks):
            return
        came = [value or b"" for name, value in record.headers if name == TRACEPARENT]
        context = _CONTEXT.fullmatch(came[0]) if len(came) == 1 else None
        span_id = secrets.token_hex(8)
        if context is None:
            dropped = {TRACEPARENT, TRACESTATE}
            trace_id, parent_id, flags = sha256(marks.id).hexdigest()[:32], None, 1
        else:
            dropped = {TRACEPARENT}
            trace_id, parent_id, flags = context[1].decode(), context[2].decode(), int(context[3], 16) & 1
        record.headers = [pair for pair in record.headers if pair[0] not in dropped]
        record.headers.append((TRACEPARENT, f"00-{trace_id}-{span_id}-{flags:02}".encode()))
        component_id = None if marks.component_id is None else marks.component_id.decode()
        at = time.time_ns() // 1_000_000
        self._on_span(Span(trace_id, span_id, parent_id, record.topic, marks.id.decode(), marks.seq, component_id, at))
