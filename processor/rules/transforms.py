"""Named transforms: functions of installed packages that change a record before it is grouped (B-25, B-26).

A package offers one under the entry-point group `uow.transforms`:

    [project.entry-points."uow.transforms"]
    upper-case = "my_package.transforms:upper_case"

    def upper_case(record):
        return record.value.upper(), [("case", b"upper")]

It gets an `InputRecord` and returns the value, and headers to add; or None, and the record is filtered out. A rule names it. So whoever writes
rules chooses among functions that were installed, and never names code of their own (decision 42).

Belongs here: finding transforms, and what they may do. Does not belong here: what becomes of a record that one fails on or leaves out
(`uow.processor.rules.routing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from uow.schemas.error_classes import RoutingError, shown

GROUP: Final = "uow.transforms"
RESERVED: Final = ("uow-", "uoo-")
"""How the names of headers begin that no transform adds."""

Headers = Sequence[tuple[str, bytes | None]]


class InputRecord(NamedTuple):
    """A record of an input, as a transform sees it.

    Attributes:
        topic: Where it lies; with partition and offset.
        partition: The same.
        offset: The same.
        key: Its key.
        value: Its value.
        headers: Its headers in their order.
        timestamp_ms: Its timestamp, epoch ms.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


Transform = Callable[[InputRecord], "tuple[bytes | None, Headers] | None"]


def installed() -> frozenset[str]:
    """Names of the transforms that are installed here."""
    return frozenset(each.name for each in entry_points(group=GROUP))


@cache
def transform_named(name: str) -> Transform:
    """The transform of this name.

    Raises:
        LookupError: None is installed, or it cannot be loaded.
    """
    for each in entry_points(group=GROUP, name=name):
        try:
            found: Transform = each.load()
        except Exception as error:  # importing code of a stranger
            raise LookupError(f"the transform {name!r} cannot be loaded: {shown(error)}") from error
        return found
    raise LookupError(f"no transform {name!r} is installed under the entry points {GROUP}")


def transformed(name: str, record: InputRecord) -> tuple[bytes | None, list[tuple[str, bytes | None]]]:
    """Value and headers of a record after its transform.

    Raises:
        RoutingError: It was filtered out, or the transform failed; it is this record's matter alone. Cases `filtered`, `transform`.
    """
    try:
        transform = transform_named(name)
    except LookupError as error:
        raise RoutingError(error.args[0], case="transform") from error
    try:
        result = transform(record)
    except (Exception, SystemExit) as error:  # the task boundary: it is code of a stranger
        raise RoutingError(f"{name}: {shown(error)}", case="transform") from error
    if result is None:
        raise RoutingError(name, case="filtered")
    value, added = _checked(name, result)
    return value, [*record.headers, *added]


def _checked(name: str, result: Any) -> tuple[bytes | None, list[tuple[str, bytes | None]]]:
    match result:
        case (bytes() | None as value, list() | tuple() as added) if all(map(_is_header, added)):
            return value, [(each[0], each[1]) for each in added]
    raise RoutingError(
        f"{name} must return a value and headers to add, whose names do not begin with uow- or uoo-", case="transform"
    )


def _is_header(pair: Any) -> bool:
    match pair:
        case (str() as name, bytes() | None):
            return (
                bool(name) and name.isprintable() and not name.startswith(RESERVED)
            )  # no header name has half a character, or a NUL
    return False
