"""XML from outside: bounded, and nothing is fetched for it (B-54)."""

from __future__ import annotations

import socket
import threading

import pytest

from uow.processor.rules.xml_documents import DEPTH_LIMIT, LIMIT_BYTES, xml_root
from uow.schemas.error_classes import DecodeError

BOMB = '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a>&c;</a>'
FILE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'
LAUGHS = (
    '<!DOCTYPE a [<!ENTITY e0 "ha">'
    + "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 9))
    + ']><a at="&e8;"/>'
)


@pytest.mark.parametrize(
    "good",
    [
        b"<a/>",
        b"<?xml version='1.0'?><!-- by hand --><a at='&lt;'>&amp;</a>",
        "<?xml version='1.0' encoding='ISO-8859-1'?><a>caf\xe9</a>".encode("latin-1"),
        "<a>caf\xe9</a>".encode("utf-16"),
        b"<!DOCTYPE a><a/>",
        b"<n:a xmlns:n='urn:n'><n:b/></n:a>",
        b"<a>" * DEPTH_LIMIT + b"</a>" * DEPTH_LIMIT,
    ],
)
def test_a_well_formed_document_is_accepted_b54(good: bytes) -> None:
    assert xml_root(good).tag in ("a", "{urn:n}a")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (None, "no value"),
        (b"", "no value"),
        (b"order 1", "no XML"),
        (b"<a><b></a>", "no XML"),
        (b"<a/><b/>", "no XML"),
        (b"<a>&unknown;</a>", "no XML"),
        (b"<?xml version='1.0' encoding='nobody'?><a/>", "no XML"),
        (BOMB.encode(), "declares an entity"),
        (BOMB.encode("utf-16"), "declares an entity"),
        (FILE.encode(), "declares an entity"),
        (FILE.encode("utf-16"), "declares an entity"),
        (LAUGHS.encode("utf-16"), "no XML"),
        (b"<a>" * (DEPTH_LIMIT + 1) + b"</a>" * (DEPTH_LIMIT + 1), "inside each other"),
        (b"<a>" * 100_000, "no XML"),
        (b"<a>" + b" " * LIMIT_BYTES + b"</a>", "are allowed"),
    ],
)
def test_a_document_that_could_spoil_a_group_is_refused_b54(bad: bytes | None, why: str) -> None:
    with pytest.raises(DecodeError, match=why) as refused:
        xml_root(bad)
    assert refused.value.case == "xml"


def test_nothing_is_fetched_for_a_document_b54() -> None:
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            server.accept()[0].close()
            asked.set()

        threading.Thread(target=serve, daemon=True).start()
        host, port = server.getsockname()[:2]
        dtd = f"<!DOCTYPE a SYSTEM 'http://{host}:{port}/a.dtd'>"
        assert xml_root(f"{dtd}<a/>".encode()).tag == "a"
        with pytest.raises(DecodeError):
            xml_root(f"{dtd}<a>&from-outside;</a>".encode())
        with pytest.raises(DecodeError):
            xml_root(f"<!DOCTYPE a [<!ENTITY % p SYSTEM 'http://{host}:{port}/'> %p;]><a/>".encode("utf-16"))
        assert not asked.is_set()
        with socket.create_connection((host, port)):  # the server would have noticed
            assert asked.wait(10)
