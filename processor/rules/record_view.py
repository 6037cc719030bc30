"""A record as expressions see it: key, headers, and its value read as JSON or XML at most once.

Belongs here: reading content that a stranger wrote, within bounds. Does not belong here: paths into it (`paths.py`), a meaning.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NoReturn

from uow.processor.rules.xml_documents import NoXmlError, read_xml
from uow.schemas.error_classes import DecodeError

LIMIT_BYTES: Final = 4_194_304
"""Largest value that is read as JSON, as of XML: as objects it takes some twenty times as much."""
_BEGINS: Final = (b"{", b"[", b'"')
"""A JSON value that is larger begins so, if it is one."""


class Numeral(str):
    """A number of a JSON text, as it was written: an amount or an id loses no digit."""

    __slots__ = ()


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Stands for a document, or a place in one, that is not there; null is another thing."""


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


class RecordView:
    """A record, of which expressions read parts. Content is parsed when it is first asked for, and kept.

    Attributes:
        key: Its key.
        value: Its value.
        headers: Its headers in their order.
        refusal: Why a part that was asked for was not looked at, where it is beyond a bound. It counts as absent, so who asks looks here too.
    """

    def __init__(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.refusal: DecodeError | None = None
        self._unread: DecodeError | None = None

    @cached_property
    def json(self) -> Any:
        """The value as JSON, numbers as `Numeral`; `ABSENT` if it is none, or beyond a bound."""
        value = (self.value or b"").removeprefix(codecs.BOM_UTF8)  # no part of the text
        if len(value) > LIMIT_BYTES:
            if not value.lstrip(b" \t\r\n").startswith(_BEGINS):
                return self._no_document("json", "begins as no JSON does")
            return self.refused(f"a document of {len(value)} bytes; {LIMIT_BYTES} are allowed")
        try:
            return json.loads(value.decode(), parse_int=Numeral, parse_float=Numeral, parse_constant=_no_json)
        except ValueError as error:
            return self._no_document("json", f"is no JSON: {error}")
        except RecursionError:
            return self.refused("nested too deep to be read")

    def refused(self, why: str, kind: str = "json") -> Any:
        """Takes note that a part of the value, as JSON or XML, is not looked at; returns `ABSENT`, which stands for it."""
        self.refusal = self.refusal or DecodeError(kind, why)
        return ABSENT

    @property
    def unread(self) -> DecodeError | None:
        """Why the value could not be read though it was asked for, neither as JSON nor as XML; that of no bytes can. It counts as absent as well."""
        looks = vars(self)
        is_read = looks.get("json", ABSENT) is not ABSENT or looks.get("xml") is not None
        return None if is_read else self._unread

    def _no_document(self, kind: str, why: str) -> Any:
        if self.value:
            self._unread = self._unread or DecodeError(kind, f"the value {' '.join(why.split())[:200]}")
        return ABSENT

    @cached_property
    def xml(self) -> Any | None:
        """The root element of the value; None if it is no XML, or none that `read_xml` accepts."""
        try:
            return read_xml(self.value)
        except NoXmlError as error:
            self._no_document("xml", f"is no XML: {error}")
            return None
        except DecodeError as error:
            self.refused(error.detail, error.case)
            return None

    def header(self, name: str) -> str | None:
        """The value of the last header of this name; None if there is none, it is null or no UTF-8."""
        for each, value in reversed(self.headers):
            if each == name:
                return decoded(value)
        return None


def decoded(data: bytes | None) -> str | None:
    """UTF-8 text; None if it is null or none."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
