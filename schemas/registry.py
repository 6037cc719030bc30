"""A schema registry with Confluent's HTTP interface: schemas of written records are registered, schemas of read records looked up.

Belongs here: the two calls, the framer that uses them, and a registry in memory for tests. Does not belong
here: frames (`uow.schemas.framing`) and bodies (`uow.schemas.codec`). Used only when `[schemas] registry_url` is set; internal
topics never use a registry.

Standard library only, see `docs/decisions/0003-schema-registry-client.md`. An answer about a schema id or a
registration never changes, so each is asked for once.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import IO, Any, Final, Protocol, Self
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from uow.schemas import framing
from uow.schemas.error_classes import ConfigError, DecodeError, UowError
from uow.schemas.framing import Framer, SingleObjectFramer
from uow.schemas.masking import masked_value

__all__ = [
    "Framer",
    "HttpRegistry",
    "MemoryRegistry",
    "Registry",
    "RegistryError",
    "RegistryFramer",
    "SingleObjectFramer",
    "connect",
    "framer_for",
    "subject_for",
]

TIMEOUT_S: Final = 10.0
"""Longest wait for one answer."""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Largest answer; a longer one cannot be a schema."""

_NO_SUCH_ID: Final = (400, 404, 422)
"""HTTP statuses with which registries refuse an id that they do not know or that is impossible; any sender can write any id into a record."""

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryError(UowError):
    """The registry does not answer, or refuses a registration.

    The record was not written or read: try again, or repair the registry.

    Attributes:
        url: Without credentials.
        status: HTTP status; 0 if there was no answer.
    """

    def __init__(self, url: str, detail: str, *, status: int = 0) -> None:
        super().__init__(detail)
        self.url = url
        self.status = status

    @property
    def text(self) -> str:
        return f"schema registry {self.url}: {self.detail}"


class Registry(Protocol):
    """The calls to a registry that are used."""

    def register(self, subject: str, schema: str) -> int:
        """The id of an Avro definition (JSON text) in a subject; registers it if it is new.

        Raises:
            RegistryError: There is no answer, or the registration was refused.
        """
        ...

    def schema(self, schema_id: int) -> str:
        """The definition with an id.

        Raises:
            DecodeError: There is no such id; case `schema`.
            RegistryError: No answer.
        """
        ...


def connect(url: str) -> Registry:
    """The registry at a URL.

    `mock://NAME` is a registry in memory, shared by all users of the same name in this process.

    Raises:
        ConfigError: It is not such a URL; setting `schemas.registry_url`.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if usable:
        return HttpRegistry(url)
    if url.startswith("mock://"):
        return _mocks.setdefault(url, MemoryRegistry())
    raise ConfigError(
        "schemas.registry_url", masked_value(url), "needs http://HOST[:PORT], https://HOST[:PORT] or mock://NAME"
    )


class MemoryRegistry:
    """A registry in memory. Like the real one it gives equal definitions one id, and knows no compatibility rule."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: str) -> int:
        schema_id = self._ids.setdefault(schema, len(self._ids) + 1)
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def schema(self, schema_id: int) -> str:
        for text, known_id in self._ids.items():
            if known_id == schema_id:
                return text
        raise DecodeError("schema", f"the registry knows no schema id {schema_id}")


_mocks: dict[str, MemoryRegistry] = {}


class _Redirects(HTTPRedirectHandler):
    """Follows a redirect, but sends user and password only to the registry itself."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            made.remove_header("Authorization")
        return made


class _Answering:
    """Ends a question that is not answered in full in time: the library's time-out is for each piece, and a registry may send one byte a second."""

    def __init__(self, timeout_s: float) -> None:
        self.is_late = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def opener(self) -> OpenerDirector:
        """An opener whose connections end with the question."""
        note = self._note

        class Connection(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                note(self.sock)

        class SecureConnection(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                note(self.sock)

        class Plain(HTTPHandler):
            def http_open(self, req: Request) -> HTTPResponse:
                return self.do_open(Connection, req)

        class Secure(HTTPSHandler):
            def https_open(self, req: Request) -> HTTPResponse:
                return self.do_open(SecureConnection, req)

        return build_opener(_Redirects, Plain, Secure)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def _note(self, made: socket.socket) -> None:
        """A connection may be made after the end: the look-up of a name or a redirect took so long."""
        with self._lock:
            self._sockets.append(made)
            is_late = self.is_late
        if is_late:
            raise TimeoutError("connected too late")

    def _end(self) -> None:
        with self._lock:
            self.is_late = True
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class HttpRegistry:
    """A registry behind HTTP.

    The URL may contain user and password (`https://user:password@host`). Safe to share between threads.
    """

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._timeout_s = timeout_s
        self._headers = {"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._schemas: dict[int, str] = {}

    def register(self, subject: str, schema: str) -> int:
        answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions", json.dumps({"schema": schema}).encode())
        schema_id = answer.get("id")
        if not isinstance(schema_id, int):
            raise RegistryError(self.url, f"no id in the answer for subject {subject}")
        return schema_id

    def schema(self, schema_id: int) -> str:
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        try:
            answer = self._ask(f"/schemas/ids/{schema_id}")
        except RegistryError as error:
            if error.status in _NO_SUCH_ID:
                raise DecodeError("schema", f"the registry knows no schema id {schema_id}") from None
            raise
        text, kind = answer.get("schema"), answer.get("schemaType", "AVRO")
        if kind != "AVRO" or not isinstance(text, str):
            raise DecodeError("schema", f"schema id {schema_id} of the registry is no Avro definition")
        return self._schemas.setdefault(schema_id, text)

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        with _Answering(self._timeout_s) as answering:
            try:
                data = self._read(answering, Request(self.url + path, data=body, headers=self._headers), path)
            except RegistryError:
                if answering.is_late:
                    raise RegistryError(self.url, f"{path}: no whole answer in {self._timeout_s:g} s") from None
                raise
        if answering.is_late:
            raise RegistryError(self.url, f"{path}: no whole answer in {self._timeout_s:g} s")
        if len(data) > MAX_ANSWER_BYTES:
            raise RegistryError(self.url, f"{path}: the answer is longer than {MAX_ANSWER_BYTES} bytes")
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise RegistryError(self.url, f"{path}: the answer is no JSON object")
        return answer

    def _read(self, answering: _Answering, request: Request, path: str) -> bytes:
        try:
            with answering.opener().open(request, timeout=self._timeout_s) as response:
                data: bytes = response.read(MAX_ANSWER_BYTES + 1)
                return data
        except HTTPError as error:
            with error:
                told = error.read(2000).decode("utf-8", "replace")
            raise RegistryError(
                self.url, f"{path}: HTTP {error.code} {' '.join(told.split())}", status=error.code
            ) from None
        except (OSError, HTTPException, ValueError) as error:
            raise RegistryError(self.url, f"{path}: {error}") from error


_OF_OUTCOMES: Final = ("Outcome", "Answer", "DeadlineWarning")


def subject_for(name: str, topic: str) -> str:
    """The subject of a definition: `TOPIC-value`, or `TOPIC-uow.NAME` for those that share `D.outcomes`."""
    return f"{topic}-{framing.NAMESPACE}.{name}" if name in _OF_OUTCOMES else f"{topic}-value"


class RegistryFramer:
    """Confluent framing: registers a definition when the first record of it goes to a topic, and keeps the id.

    Also gives the schemas to read with (`uow.schemas.codec.SchemaSource`), so one object serves both directions. Safe to
    share between threads.
    """

    def __init__(self, registry: str | Registry) -> None:
        """Takes a URL as `connect` does, or a registry. No request is made yet."""
        self.registry: Registry = connect(registry) if isinstance(registry, str) else registry
        self._headers: dict[tuple[str, str], bytes] = {}
        self._lock = threading.Lock()

    def header(self, name: str, topic: str) -> bytes:
        """The 5 bytes in front of a body.

        Raises:
            RegistryError: There is no answer, or the definition was refused.
        """
        with self._lock:
            known = self._headers.get((name, topic))
            if known is None:
                schema_id = self.registry.register(subject_for(name, topic), framing.definition_text(name))
                known = self._headers[name, topic] = framing.confluent_header(schema_id)
        return known

    def schema(self, schema_id: int) -> str:
        return self.registry.schema(schema_id)


def framer_for(registry_url: str) -> Framer:
    """The framer for `[schemas] registry_url`; an empty text means single-object encoding.

    Raises:
        ConfigError: As `connect`.
    """
    return RegistryFramer(registry_url) if registry_url else SingleObjectFramer()
