"""The text of `group_key`: how a record gives its routing name (B-20, B-96). Pure.

    header:uow-destination
    path:customer.name
    path:file pattern:orders_*.xml             # what * stands for
    path:transaction.id pattern:*:**           # what is before the first colon
    header:region + path:$.product             # joined: west/bolt
    constant:all
    request                                    # a reply to a numbered request, by its correlation id (B-79)
    request:path:call.id                       # the same, and where the reply has the id of the request

A part that finds nothing, or in a joined name a blank, makes that there is no routing name; then `on_no_key` says what becomes of the record. In a joined name `/` and `%` of a part are percent-encoded, so that two
records with different parts never have one name.

Belongs here: that text. Does not belong here: names that cannot be used, rows (`rule_set.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from uow.processor.rules.paths import MAX_CHARS, ExpressionError, Place
from uow.processor.rules.record_view import RecordView
from uow.topics.rules import REQUEST, OnNoKey, Rule, Source

JOINED_BY: Final = " + "
_PATTERN: Final = " pattern:"

_Part = Callable[[RecordView], str | None]


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Finds the routing name of a record. Two are equal when their texts are.

    Attributes:
        source: As it was written.

    Raises:
        ExpressionError: The text is none.
    """

    source: str
    _parts: tuple[_Part, ...] = field(init=False, repr=False, compare=False)
    _request: Place | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.source) > MAX_CHARS:
            raise ExpressionError(f"is longer than {MAX_CHARS} characters")
        texts = [] if self.is_request else self.source.split(JOINED_BY)
        _, asks, place = self.source.partition(":") if self.is_request else ("", "", "")
        object.__setattr__(self, "_request", Place(place) if asks else None)
        parts = [_part(text.strip()) for text in texts]
        object.__setattr__(self, "_parts", tuple(parts if len(parts) == 1 else map(_not_blank, parts)))

    def __reduce__(self) -> tuple[type[GroupKey], tuple[str]]:
        return GroupKey, (self.source,)

    @property
    def is_request(self) -> bool:
        """True if group key and number are those of the request that a record replies to; it has no routing name then."""
        return self.source == REQUEST or self.source.startswith(f"{REQUEST}:")

    def request_id(self, record: RecordView, correlation_id: str | None) -> str | None:
        """The id of the request that a record replies to, where the key says, else its correlation id; None if it gives none."""
        return correlation_id if self._request is None else self._request.text(record)

    def name(self, record: RecordView) -> str | None:
        """The routing name as the record gives it; None if it gives none."""
        found = [part(record) for part in self._parts]
        texts = [text for text in found if text is not None]
        if not texts or len(texts) < len(found):
            return None
        return texts[0] if len(texts) == 1 else "/".join(_encoded(text) for text in texts)

    def absent(self, record: RecordView) -> str:
        """The first part that finds nothing, or nothing that fits its pattern, as it was written."""
        texts = [self.source] if self.is_request else self.source.split(JOINED_BY)
        without = (text.strip() for text, part in zip(texts, self._parts, strict=False) if part(record) is None)
        return next(without, self.source)


def is_inside(rule: Rule, sources: Sequence[Source]) -> bool:
    """True if the routing name, or a part of it, is looked for in the value of a record."""
    keys = [*rule.group_key.split(JOINED_BY), *(each.correlation_path or "" for each in sources)]
    return any(key.strip().removeprefix(f"{REQUEST}:").startswith("path:") for key in keys)


def on_no_key(rule: Rule, sources: Sequence[Source]) -> OnNoKey:
    """The treatment of a record without routing name: what `by_key` comes to, or what the rule says (B-22).

    Args:
        rule: The rule.
        sources: Its enabled sources.
    """
    if rule.on_no_key is not OnNoKey.BY_KEY:
        return rule.on_no_key
    return OnNoKey.REJECT if is_inside(rule, sources) else OnNoKey.DEFAULT


def _not_blank(part: _Part) -> _Part:
    """A blank is no name, and no part of one: else all orders without a number would be one customer's order (B-24)."""

    def found(record: RecordView) -> str | None:
        text = part(record)
        return text if text is not None and text.strip() else None

    return found


def _encoded(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _part(text: str) -> _Part:
    if text.startswith("constant:") and text != "constant:":
        constant = text.removeprefix("constant:")
        return lambda record: constant
    source, found, pattern = text.partition(_PATTERN)
    try:
        place = Place(source.strip())
    except ExpressionError as error:
        raise ExpressionError(f"{error}; or constant:TEXT, or request alone, with :PLACE behind it") from None
    return matching(place, pattern) if found else place.text


def matching(place: Place, pattern: str) -> _Part:
    """Gives the part of the text at a place that the `*` of a pattern stands for; None if the text does not match.

    A pattern that ends with `**` lets anything follow: in `*:**` the `*` is all before the first colon.

    Raises:
        ExpressionError: The pattern does not have one `*`, or nothing between it and `**`.
    """
    whole, pattern = pattern, pattern.removesuffix("**")
    is_open = pattern != whole
    if is_open and pattern.endswith("*"):
        raise ExpressionError(f"{whole[:50]!r} needs a text between * and **")
    if pattern.count("*") != 1:
        raise ExpressionError(f"a pattern has one *, {pattern[:50]!r} has {pattern.count('*')}")
    before, _, after = pattern.partition("*")

    def part(record: RecordView) -> str | None:
        text = place.text(record)
        if text is not None and is_open:
            text = text[: text.find(after, len(before)) + len(after)] if after in text[len(before) :] else None
        if text is None or len(text) < len(pattern) - 1 or not (text.startswith(before) and text.endswith(after)):
            return None
        return text[len(before) : len(text) - len(after)]

    return part
