"""Keyword arguments that calls in the event loop share with those of the client, for type checkers; a test compares the names.

Belongs here: names and types. Does not belong here: meaning and defaults (`uow.client.connection`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict

from uow.aio.values import Message
from uow.client.consumption import Start
from uow.client.outgoing import HeaderPairs
from uow.client.verdict import GivenUp, Unreadable
from uow.topics.policies import ExpirationPolicy


class UnitSettings(TypedDict, total=False):
    """Of `Connection.unit`, beside those that it names."""

    correlation_id: str | None
    priority: int | None
    expires_at: int | datetime | None
    delivery_mode: str | None
    headers: HeaderPairs
    segment_bytes: int | None
    resume: bool
    leave_open: bool


class UnitsSettings(TypedDict, total=False):
    """Of `Connection.units`, beside those that it names."""

    start: Start | str | None
    topic: str | None
    expiration_policy: ExpirationPolicy | str | None
    redelivery_limit: int | None
    unreadable: Unreadable | str
    on_given_up: Callable[[GivenUp], object] | None
    kafka: Mapping[str, Any] | None


class MessagesSettings(TypedDict, total=False):
    """Of `Connection.messages`, beside those that it names."""

    start: Start | str | None
    commit_interval_ms: int
    unreadable_to: str | None
    on_given_up: Callable[[GivenUp], object] | None
    on_expired: Callable[[Message], object] | None
    longest_wait_ms: int
    order: str | None
    kafka: Mapping[str, Any] | None
