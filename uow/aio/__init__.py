"""The client for asyncio: the names of `uow` that wait, awaited. Everything else, values, policies and `uow.errors`, is the same.

Belongs here: the names that applications import. Does not belong here: any other code.
"""

from uow.aio.connection import ClientSession, Connection, ConnectionFactory, Producer, UnitWriter, connect
from uow.aio.readers import MessageReader, Reader
from uow.aio.settings import MessagesSettings, UnitSettings, UnitsSettings
from uow.aio.threads import Opening
from uow.aio.values import Cancellation, FanOut, Message, ReceivedDocument, ReceivedUnit, StreamedUnit

__all__ = [
    "Cancellation",
    "ClientSession",
    "Connection",
    "ConnectionFactory",
    "FanOut",
    "Message",
    "MessageReader",
    "MessagesSettings",
    "Opening",
    "Producer",
    "Reader",
    "ReceivedDocument",
    "ReceivedUnit",
    "StreamedUnit",
    "UnitSettings",
    "UnitWriter",
    "UnitsSettings",
    "connect",
]
