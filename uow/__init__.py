"""Units of work for Apache Kafka: the public names of the client.

They are loaded when they are first used (PEP 562): whoever imports one room of this package, a Spark worker for one, loads no Kafka client.

Belongs here: the names that applications import. Does not belong here: any other code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uow import errors
    from uow.client.answers import Cancellation
    from uow.client.blocking import OrderBlocked
    from uow.client.client_session import Acknowledge, ClientSession, Producer
    from uow.client.connection import Connection, ConnectionFactory, connect
    from uow.client.consumption import Start
    from uow.client.fan_out import FanOut, Request
    from uow.client.forwarding import Forwarded, Keep
    from uow.client.outgoing import Component, OutgoingRecord
    from uow.client.probing import Recovered
    from uow.client.reader import Reader
    from uow.client.received import InnerUnit, Message, ReceivedComponent, ReceivedDocument, ReceivedUnit
    from uow.client.refusals import Rejection
    from uow.client.rejected_records import RefusedRecord
    from uow.client.sending import Pending, Sent
    from uow.client.session_state import (
        ConnectionLost,
        ConnectionRefreshed,
        ConnectionState,
        LostServer,
        Missed,
        Statistics,
    )
    from uow.client.streaming import StreamedUnit, StreamReader
    from uow.client.timely_messages import MessageReader
    from uow.client.tracing import Span
    from uow.client.unit_writer import UnitWriter
    from uow.client.verdict import Failure, GivenUp, Unreadable
    from uow.schemas.error_classes import UowError
    from uow.schemas.records import (
        Answer,
        ComponentRecord,
        LastArrived,
        Outcome,
        Range,
        Reason,
        Reference,
        Source,
        SourceCount,
        Unit,
        UnitOutcome,
    )
    from uow.topics.commands import Command, Verb
    from uow.topics.manifests import Manifest, ReplyContext, RequestEntry
    from uow.topics.mq_ids import mq_group_id
    from uow.topics.policies import AliasFamily, ExpirationPolicy, ReconnectPolicy

_HOMES = {
    "Acknowledge": "uow.client.client_session",
    "AliasFamily": "uow.topics.policies",
    "Answer": "uow.schemas.records",
    "Cancellation": "uow.client.answers",
    "ClientSession": "uow.client.client_session",
    "Command": "uow.topics.commands",
    "Component": "uow.client.outgoing",
    "ComponentRecord": "uow.schemas.records",
    "Connection": "uow.client.connection",
    "ConnectionFactory": "uow.client.connection",
    "ConnectionLost": "uow.client.session_state",
    "ConnectionRefreshed": "uow.client.session_state",
    "ConnectionState": "uow.client.session_state",
    "ExpirationPolicy": "uow.topics.policies",
    "Failure": "uow.client.verdict",
    "FanOut": "uow.client.fan_out",
    "Forwarded": "uow.client.forwarding",
    "GivenUp": "uow.client.verdict",
    "InnerUnit": "uow.client.received",
    "Keep": "uow.client.forwarding",
    "LastArrived": "uow.schemas.records",
    "LostServer": "uow.client.session_state",
    "Manifest": "uow.topics.manifests",
    "Message": "uow.client.received",
    "MessageReader": "uow.client.timely_messages",
    "Missed": "uow.client.session_state",
    "Outcome": "uow.schemas.records",
    "OrderBlocked": "uow.client.blocking",
    "OutgoingRecord": "uow.client.outgoing",
    "Pending": "uow.client.sending",
    "Producer": "uow.client.client_session",
    "Range": "uow.schemas.records",
    "Reader": "uow.client.reader",
    "Reason": "uow.schemas.records",
    "ReceivedComponent": "uow.client.received",
    "ReceivedDocument": "uow.client.received",
    "ReceivedUnit": "uow.client.received",
    "ReconnectPolicy": "uow.topics.policies",
    "Recovered": "uow.client.probing",
    "Reference": "uow.schemas.records",
    "RefusedRecord": "uow.client.rejected_records",
    "Rejection": "uow.client.refusals",
    "ReplyContext": "uow.topics.manifests",
    "Request": "uow.client.fan_out",
    "RequestEntry": "uow.topics.manifests",
    "Sent": "uow.client.sending",
    "Source": "uow.schemas.records",
    "SourceCount": "uow.schemas.records",
    "Span": "uow.client.tracing",
    "Start": "uow.client.consumption",
    "Statistics": "uow.client.session_state",
    "StreamReader": "uow.client.streaming",
    "StreamedUnit": "uow.client.streaming",
    "Unit": "uow.schemas.records",
    "UnitOutcome": "uow.schemas.records",
    "UnitWriter": "uow.client.unit_writer",
    "Unreadable": "uow.client.verdict",
    "UowError": "uow.schemas.error_classes",
    "Verb": "uow.topics.commands",
    "connect": "uow.client.connection",
    "mq_group_id": "uow.topics.mq_ids",
}
"""The module that defines each name."""

__all__ = [
    "Acknowledge",
    "AliasFamily",
    "Answer",
    "Cancellation",
    "ClientSession",
    "Command",
    "Component",
    "ComponentRecord",
    "Connection",
    "ConnectionFactory",
    "ConnectionLost",
    "ConnectionRefreshed",
    "ConnectionState",
    "ExpirationPolicy",
    "Failure",
    "FanOut",
    "Forwarded",
    "GivenUp",
    "InnerUnit",
    "Keep",
    "LastArrived",
    "LostServer",
    "Manifest",
    "Message",
    "MessageReader",
    "Missed",
    "OrderBlocked",
    "Outcome",
    "OutgoingRecord",
    "Pending",
    "Producer",
    "Range",
    "Reader",
    "Reason",
    "ReceivedComponent",
    "ReceivedDocument",
    "ReceivedUnit",
    "ReconnectPolicy",
    "Recovered",
    "Reference",
    "RefusedRecord",
    "Rejection",
    "ReplyContext",
    "Request",
    "RequestEntry",
    "Sent",
    "Source",
    "SourceCount",
    "Span",
    "Start",
    "Statistics",
    "StreamReader",
    "StreamedUnit",
    "Unit",
    "UnitOutcome",
    "UnitWriter",
    "Unreadable",
    "UowError",
    "Verb",
    "connect",
    "errors",
    "mq_group_id",
]


if not TYPE_CHECKING:  # to a type checker, every name that is asked for would exist

    def __getattr__(name: str) -> Any:
        """Loads a public name, once; raises AttributeError for any other."""
        if name == "errors":
            return import_module("uow.errors")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
