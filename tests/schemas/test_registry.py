"""Confluent framing through a registry: in memory, and over HTTP against a stub on the loopback interface."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from uow.schemas import codec, framing
from uow.schemas.error_classes import ConfigError, DecodeError
from uow.schemas.records import Answer
from uow.schemas.registry import (
    MAX_ANSWER_BYTES,
    HttpRegistry,
    MemoryRegistry,
    RegistryError,
    RegistryFramer,
    SingleObjectFramer,
    connect,
    framer_for,
    subject_for,
)

ANSWER = Answer("c-1", "cancel", "order-1", "megazon", True, "done", "asked for", "jill", 1)


class Stub(ThreadingHTTPServer):
    """The two calls of Confluent's interface; `answers` overrides them by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.memory = MemoryRegistry()
        self.seen: list[tuple[str, str, str | None]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.redirects: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def log_message(self, format: str, *args: Any) -> None: ...

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def note(self) -> bool:
        self.server.seen.append((self.command, self.path, self.headers.get("Authorization")))
        if self.path in self.server.redirects:
            self.send_response(302)
            self.send_header("Location", self.server.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return True
        if self.path in self.server.answers:
            self.answer(*self.server.answers[self.path])
            return True
        return False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.note():
            subject = self.path.removeprefix("/subjects/").removesuffix("/versions")
            self.answer(200, json.dumps({"id": self.server.memory.register(subject, body["schema"])}).encode())

    def do_GET(self) -> None:
        if not self.note():
            try:
                text = self.server.memory.schema(int(self.path.rpartition("/")[2]))
            except DecodeError:
                self.answer(404, b'{"error_code": 40403, "message": "Schema not found"}')
            else:
                self.answer(200, json.dumps({"schema": text}).encode())


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_definition_is_registered_once_and_looked_up_once(stub: Stub) -> None:
    writer, reader = RegistryFramer(stub.url), RegistryFramer(stub.url + "/")
    data = [codec.frame(ANSWER, writer, "megazon.outcomes") for _ in range(3)]
    assert all(codec.decode(row, registry=reader) == ANSWER for row in data)
    assert stub.seen == [
        ("POST", "/subjects/megazon.outcomes-uow.Answer/versions", None),
        ("GET", "/schemas/ids/1", None),
    ]


def test_a_consumer_with_a_registry_still_reads_single_object_encoding(stub: Stub) -> None:
    assert codec.decode(codec.frame(ANSWER), registry=RegistryFramer(stub.url)) == ANSWER
    assert stub.seen == []


def test_one_definition_has_one_id_under_many_subjects_and_each_topic_its_own_subject(stub: Stub) -> None:
    framer = RegistryFramer(stub.url)
    assert framer.header("Unit", "a.units") == framer.header("Unit", "b.units") == framing.confluent_header(1)
    assert stub.memory.subjects == {"a.units-value": [1], "b.units-value": [1]}


def test_records_that_share_a_topic_have_a_subject_each() -> None:
    assert subject_for("Unit", "m.units") == "m.units-value"
    assert subject_for("Outcome", "m.outcomes") == "m.outcomes-uow.Outcome"
    assert subject_for("Answer", "m.outcomes") == "m.outcomes-uow.Answer"
    assert subject_for("DeadlineWarning", "m.outcomes") == "m.outcomes-uow.DeadlineWarning"


def test_user_and_password_of_the_url_are_sent_and_never_shown(stub: Stub) -> None:
    url = stub.url.replace("//", "//jill:s%40cret@")
    registry = HttpRegistry(url + "/base/")
    stub.answers["/base/schemas/ids/9"] = (500, b"out of\norder")
    with pytest.raises(RegistryError) as caught:
        registry.schema(9)
    assert stub.seen[-1][2] == "Basic " + base64.b64encode(b"jill:s@cret").decode()
    assert str(caught.value) == f"schema registry {stub.url}/base: /schemas/ids/9: HTTP 500 out of order"
    assert caught.value.status == 500


def test_user_and_password_are_kept_where_a_redirect_stays_and_told_to_no_other_host(stub: Stub) -> None:
    with Stub() as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            for server in (stub, other):
                server.answers["/there"] = (200, b'{"schema": "{}"}')
            stub.redirects = {"/schemas/ids/1": f"{stub.url}/there", "/schemas/ids/2": f"{other.url}/there"}
            registry = HttpRegistry(stub.url.replace("//", "//jill:secret@"))
            assert registry.schema(1) == registry.schema(2) == "{}"
        finally:
            other.shutdown()
            thread.join()
    assert [authorization is not None for *_, authorization in stub.seen] == [True, True, True]
    assert other.seen == [("GET", "/there", None)]


def test_a_user_without_a_password_is_sent(stub: Stub) -> None:
    HttpRegistry(stub.url.replace("//", "//jill@")).register("s", "{}")
    assert stub.seen[-1][2] == "Basic " + base64.b64encode(b"jill:").decode()


@pytest.mark.parametrize("status", [400, 404, 422])
def test_an_id_that_the_registry_refuses_is_a_decode_error(stub: Stub, status: int) -> None:
    stub.answers["/schemas/ids/4294967295"] = (status, b"{}")
    with pytest.raises(DecodeError, match="knows no schema id 4294967295"):
        HttpRegistry(stub.url).schema(4294967295)


def test_an_id_that_the_registry_does_not_know_is_a_decode_error(stub: Stub) -> None:
    with pytest.raises(DecodeError, match="knows no schema id 41") as caught:
        codec.decode(framing.confluent_header(41) + b"x", registry=RegistryFramer(stub.url))
    assert caught.value.case == "schema"


@pytest.mark.parametrize("answer", [b'{"schema": "syntax", "schemaType": "PROTOBUF"}', b'{"schema": 7}', b"{}"])
def test_an_id_that_stands_for_no_avro_definition_is_a_decode_error(stub: Stub, answer: bytes) -> None:
    stub.answers["/schemas/ids/3"] = (200, answer)
    with pytest.raises(DecodeError, match="no Avro definition"):
        HttpRegistry(stub.url).schema(3)


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"\xff", b"[" * 100_000, b'{"id": ' + b" " * MAX_ANSWER_BYTES + b"1}"],
    ids=["empty", "array", "no-text", "deep", "long"],
)
def test_a_broken_answer_is_a_registry_error(stub: Stub, answer: bytes) -> None:
    stub.answers["/subjects/s/versions"] = (200, answer)
    with pytest.raises(RegistryError):
        HttpRegistry(stub.url).register("s", "{}")


def test_an_answer_without_an_id_and_a_refusal_are_registry_errors(stub: Stub) -> None:
    stub.answers["/subjects/s%2F1-value/versions"] = (200, b'{"id": "1"}')
    with pytest.raises(RegistryError, match="no id"):
        HttpRegistry(stub.url).register("s/1-value", "{}")
    stub.answers["/subjects/t-value/versions"] = (409, b"incompatible")
    with pytest.raises(RegistryError, match="HTTP 409 incompatible"):
        RegistryFramer(stub.url).header("Unit", "t")


def test_a_failed_registration_is_tried_again_the_next_time(stub: Stub) -> None:
    stub.answers["/subjects/t-value/versions"] = (503, b"")
    framer = RegistryFramer(stub.url)
    with pytest.raises(RegistryError):
        framer.header("Unit", "t")
    stub.answers.clear()
    assert framer.header("Unit", "t") == framing.confluent_header(1)


def test_a_registry_that_is_not_there_is_a_registry_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(RegistryError) as caught:
            HttpRegistry(url, timeout_s=5).schema(1)
    assert caught.value.status == 0


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "ftp://host",
        "http://",
        "http://host:no",
        "http://[",
        "file:///etc/hosts",
        "http://jill:secret@:1",
    ],
)
def test_a_url_that_is_none_is_a_config_error_that_keeps_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(url)
    assert caught.value.setting == "schemas.registry_url"
    assert "secret" not in str(caught.value)


def test_mock_registries_are_shared_by_name() -> None:
    assert connect("mock://one") is connect("mock://one")
    assert connect("mock://one") is not connect("mock://two")
    assert isinstance(connect("https://host"), HttpRegistry)


def test_an_equal_definition_keeps_its_id_and_its_version_in_memory() -> None:
    memory = MemoryRegistry()
    assert [memory.register("a", "x"), memory.register("a", "y"), memory.register("a", "x")] == [1, 2, 1]
    assert memory.subjects == {"a": [1, 2]}
    assert memory.schema(2) == "y"


def test_the_setting_chooses_the_framing() -> None:
    assert isinstance(framer_for(""), SingleObjectFramer)
    assert isinstance(framer_for("mock://chosen"), RegistryFramer)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_registry_that_drips_its_answer_holds_nobody_beyond_the_time_out(head: bytes) -> None:
    """A byte now and then, in the body or in the headers: each comes in time, all of them do not."""
    stop = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(10_000)
            connection.sendall(head)
            for _ in range(900):
                if stop.wait(0.05):
                    return
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        registry = HttpRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5)
        with pytest.raises(RegistryError, match=r"no whole answer in 0\.5 s"):
            registry.schema(1)
        stop.set()
        thread.join()


def test_a_connection_that_is_made_too_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up of the name takes longer than the time-out, which the library does not count; then the registry drips."""
    stop, known = threading.Event(), socket.create_connection

    def slowly(*arguments: Any, **named: Any) -> socket.socket:
        stop.wait(0.5)
        return known(*arguments, **named)

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            for _ in range(50):
                if stop.wait(0.1):
                    return
                connection.sendall(b"X: x\r\n")
            stop.set()  # it was all taken

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        monkeypatch.setattr(socket, "create_connection", slowly)
        registry = HttpRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(RegistryError, match=r"no whole answer in 0\.2 s"):
            registry.schema(1)
        took_all = stop.is_set()
        stop.set()
        thread.join()
    assert not took_all
