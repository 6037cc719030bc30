"""A header name that is no UTF-8 is an error with a name, not the end of the process (W-23)."""

from __future__ import annotations

from typing import Any

import pytest

from uow.errors import DecodeError
from uow.handles import raw_headers


class Broken:
    def headers(self) -> Any:
        raise SystemError("headers returned a result with an exception set")


def test_unreadable_headers_are_a_decode_error() -> None:
    record: Any = Broken()
    with pytest.raises(DecodeError) as caught:
        raw_headers(record)
    assert caught.value.case == "headers"
