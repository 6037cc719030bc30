"""The manifest of a fan-out: the requests whose replies make one unit, as the value of a command (aggregation, 6.9). Pure.

    {"name": "trip", "timeout_ms": 5000,
     "requests": [{"number": 1, "folder": "hotel", "topic": "hotels", "weight": 2, "notice_topic": "hotels.cancelled"},
                  {"number": 2, "folder": "flight", "topic": "flights"}],
     "reply": {"topic": "trips.done", "key": "17", "correlation_id": "q-17", "headers": [["x", "1"]]}}

The id of the group is `<rule id>/<name>/<text of the caller's>`, that of a request `<group id>.<number>`; a reply brings it back.

Belongs here: that text, its limits, ids of requests, and the text of a cancel notice. Does not belong here: its effect on a group (`uow.processor.core`), sending it
(`uow.client.fan_out`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from uow.schemas.error_classes import DecodeError
from uow.topics.headers import MAX_ID_BYTES, decimal

MAX_MANIFEST_BYTES: Final = 65_536
"""Longest manifest: it stays in memory and in the changelog for as long as its group is open."""
MAX_NAME_BYTES: Final = 128
"""Longest name, and longest folder."""
MAX_REQUESTS: Final = MAX_MANIFEST_BYTES
"""Above every number that a manifest can have."""
MAX_WEIGHT: Final = 1_000_000
"""Of one request."""
MAX_WEIGHED: Final = 1_000
"""Most requests of a manifest with weights: each reply looks at all of them."""
KIND_NOTICE: Final = b"notice"
"""`uow-kind` of a cancel notice."""
_MAX_TOPIC: Final = 249
_MAX_TIMEOUT_MS: Final = 2**53


class RequestEntry(NamedTuple):
    """A request as the manifest lists it; its number is its place, from 1. Folders may repeat.

    Attributes:
        folder: Name of its reply in the unit.
        topic: Where it was sent, for people.
        weight: What its reply counts for a quorum (B-209).
        notice_topic: Where it is told that the reply is needed no longer; None: nowhere. The rules' parameter `notice_topics` says which ones may be.
    """

    folder: str
    topic: str
    weight: int = 1
    notice_topic: str | None = None

    def encode(self, number: int) -> dict[str, Any]:
        """Its part of the text."""
        told: dict[str, Any] = {"number": number, "folder": self.folder, "topic": self.topic}
        if self.weight != 1:
            told["weight"] = self.weight
        if self.notice_topic is not None:
            told["notice_topic"] = self.notice_topic
        return told


class ReplyContext(NamedTuple):
    """The output that a call asks for (B-91).

    Attributes:
        topic: The unit's topic, in place of the row's; None: the row's. The rule's parameter `reply_topics` says which ones may be asked for.
        key: The unit's key on a target topic; None: the group id.
        correlation_id: `uow-correlation-id` of the unit, or None.
        headers: User headers of the unit.
    """

    topic: str | None = None
    key: str | None = None
    correlation_id: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Manifest(NamedTuple):
    """The content of a manifest.

    Attributes:
        name: The routing name: it chooses the row.
        requests: In order.
        timeout_ms: How long replies are waited for, from the manifest on; 0: for ever; None: as the row says.
        reply: The output.
    """

    name: str
    requests: tuple[RequestEntry, ...]
    timeout_ms: int | None = None
    reply: ReplyContext = ReplyContext()

    @property
    def folders(self) -> list[str]:
        """The folder of each request, by number."""
        return [each.folder for each in self.requests]

    @property
    def weight(self) -> int:
        """Of all requests."""
        return sum(each.weight for each in self.requests)

    def encode(self) -> bytes:
        """Its text, as JSON in UTF-8."""
        told: dict[str, Any] = {"name": self.name}
        if self.timeout_ms is not None:
            told["timeout_ms"] = self.timeout_ms
        told["requests"] = [each.encode(number) for number, each in enumerate(self.requests, 1)]
        reply = {name: value for name, value in self.reply._asdict().items() if value}
        if reply:
            told["reply"] = reply
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def read_manifest(text: bytes | None) -> Manifest:
    """Reads a manifest. Anybody may have written it: every field is looked at, unknown ones are left alone.

    Raises:
        DecodeError: It is none, or too large. Case `manifest`.
    """
    if not text:
        raise _wrong("the value is empty, and a manifest is expected there")
    if len(text) > MAX_MANIFEST_BYTES:
        raise _wrong(f"{len(text)} bytes; {MAX_MANIFEST_BYTES} are allowed")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong("the value is no JSON") from None
    told = _object("it", told)
    timeout_ms = told.get("timeout_ms")
    if timeout_ms is not None and not (_is_integer(timeout_ms) and 0 <= timeout_ms <= _MAX_TIMEOUT_MS):
        raise _wrong("timeout_ms is no number of milliseconds from 0")
    listed = told.get("requests")
    if not isinstance(listed, list) or not listed:
        raise _wrong("requests is no list, or an empty one")
    requests = []
    for number, each in enumerate(listed, 1):
        request = _object(f"request {number}", each)
        if request.get("number") != number:
            raise _wrong(f"the number of request {number} is not {number}")
        weight, notice_topic = request.get("weight", 1), request.get("notice_topic")
        if not (_is_integer(weight) and 1 <= weight <= MAX_WEIGHT):
            raise _wrong(f"weight of request {number} is no whole number from 1 to {MAX_WEIGHT}")
        requests.append(
            RequestEntry(
                _text(f"folder of request {number}", request.get("folder"), MAX_NAME_BYTES),
                _text(f"topic of request {number}", request.get("topic"), _MAX_TOPIC),
                weight,
                None if notice_topic is None else _text(f"notice_topic of request {number}", notice_topic, _MAX_TOPIC),
            )
        )
    if len(requests) > MAX_WEIGHED and any(each.weight != 1 for each in requests):
        raise _wrong(f"weights among {len(requests)} requests; {MAX_WEIGHED} may have them")
    name = _text("name", told.get("name"), MAX_NAME_BYTES)
    return Manifest(name, tuple(requests), timeout_ms, _reply(told.get("reply") or {}))


def _reply(told: Any) -> ReplyContext:
    reply = _object("reply", told)
    said = {
        name: None if reply.get(name) is None else _text(f"{name} of reply", reply[name], longest)
        for name, longest in (("topic", _MAX_TOPIC), ("key", MAX_MANIFEST_BYTES), ("correlation_id", MAX_ID_BYTES))
    }
    pairs = reply.get("headers") or []
    is_pairs = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    if not is_pairs:
        raise _wrong("headers of reply are no list of pairs")
    headers = [(_text("a header of reply", name, MAX_NAME_BYTES), _value(value)) for name, value in pairs]
    for name, _ in headers:
        if name.startswith(("uow-", "uoo-")):
            raise _wrong(f"headers of reply: {name!r} is not the caller's to set")
    return ReplyContext(said["topic"], said["key"], said["correlation_id"], tuple(headers))


def _wrong(why: str) -> DecodeError:
    return DecodeError("manifest", why)


def _object(what: str, told: Any) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise _wrong(f"{what} is no JSON object")
    return told


def _text(what: str, told: Any, longest: int) -> str:
    if not isinstance(told, str) or not told.strip():
        raise _wrong(f"{what} is no text, or blank")
    _value(told)
    if len(told.encode()) > longest:
        raise _wrong(f"{what} is longer than {longest} bytes")
    return told


def _value(told: Any) -> str:
    try:
        told.encode()
    except (AttributeError, UnicodeEncodeError):
        raise _wrong("a value that is no text in UTF-8") from None
    return str(told)


def _is_integer(told: Any) -> bool:
    return isinstance(told, int) and not isinstance(told, bool)


class RequestId(NamedTuple):
    """The parts of `uow-request-id`, which a reply has as its correlation (B-79): no look-up is needed."""

    group_id: bytes
    number: int
    rule_id: str
    name: str

    @classmethod
    def parse(cls, text: str) -> RequestId | None:
        """Reads `<rule id>/<name>/<caller's text>.<number>`; a name may contain both signs, the others neither. None: it is none."""
        group_id, dot, digits = text.rpartition(".")
        number = decimal(digits.encode()) if digits.isascii() else None
        rule_id, slash, rest = group_id.partition("/")
        name, other, unique = rest.rpartition("/")
        try:
            raw = group_id.encode()
        except UnicodeEncodeError:  # JSON can write half a character
            return None
        if not (dot and slash and other and rule_id and name.strip() and unique) or len(raw) > MAX_ID_BYTES:
            return None
        if number is None or not 1 <= number <= MAX_REQUESTS:
            return None
        return cls(raw, number, rule_id, name)


def request_id(group_id: str, number: int) -> str:
    """The id of a request of a group."""
    return f"{group_id}.{number}"


def cancel_notice(request_id: str, request: RequestEntry, outcome: str, reason: str) -> bytes:
    """Value of a cancel notice, as JSON in UTF-8: the request whose reply is needed no longer, and how its group closed (B-209)."""
    told = {
        "request_id": request_id,
        "folder": request.folder,
        "topic": request.topic,
        "outcome": outcome,
        "reason": reason,
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def by_folder(folders: Sequence[str], numbers: Iterable[int]) -> dict[str, list[int]]:
    """For each folder the places of its replies among all that came, from 1; in the manifest's order, and only folders with replies.

    Args:
        folders: Of the requests, by number.
        numbers: Of the replies, in order.
    """
    found: dict[str, list[int]] = {}
    for place, number in enumerate(numbers, 1):
        found.setdefault(folders[number - 1], []).append(place)
    return found


def open_folders(folders: Sequence[str], numbers: Iterable[int]) -> list[str]:
    """Folders of the requests without reply, in the manifest's order; one that lacks two replies stands there twice."""
    held = set(numbers)
    return [folder for number, folder in enumerate(folders, 1) if number not in held]
