"""Units of work for Apache Kafka: what users import and type.

Belongs here: the public names of contract section 8. Does not belong here: any code.
"""

from __future__ import annotations

from schemas.errors import UowError
from schemas.records import Answer, Outcome, Range, Reason, Source, Unit, UnitOutcome
from topics.policies import AliasFamily
from uow import errors
from uow.answers import Cancellation
from uow.client import Connection, connect
from uow.component import Component
from uow.consumption import Start
from uow.forward import Forwarded
from uow.reader import Reader
from uow.received import InnerUnit, Message, ReceivedComponent, ReceivedUnit
from uow.refusals import Rejection
from uow.sending import Sent
from uow.streaming import StreamedUnit, StreamReader
from uow.tracing import Span
from uow.unit import UnitWriter
from uow.verdict import GivenUp, Unreadable

__all__ = [
    "AliasFamily",
    "Answer",
    "Cancellation",
    "Component",
    "Connection",
    "Forwarded",
    "GivenUp",
    "InnerUnit",
    "Message",
    "Outcome",
    "Range",
    "Reader",
    "Reason",
    "ReceivedComponent",
    "ReceivedUnit",
    "Rejection",
    "Sent",
    "Source",
    "Span",
    "Start",
    "StreamReader",
    "StreamedUnit",
    "Unit",
    "UnitOutcome",
    "UnitWriter",
    "Unreadable",
    "UowError",
    "connect",
    "errors",
]
