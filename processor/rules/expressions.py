"""Expressions of rules: a place in a record, or a condition over several in CEL, the Common Expression Language. Pure.

    path:product                                       # a place (`paths.py`)
    quantity > 100 && region in ['west', 'north']      # fields of a JSON value
    double(path('/order/quantity')) > 100              # of an XML value
    header('uow-type') == 'order' || key().startsWith('a')
    sum(quantity) >= 500 || count() == 10              # over a group: `Predicate`
    count() == max(event_count, 0) + 1                 # 0 stands for a component that has none

A bare name is a field of the JSON value, `a.b` one inside it; `path`, `header` and `key()` are places. Numbers are decimal fractions of 64
bits, as CEL has it for JSON, whole ones included. What is absent is null. An operation on the wrong type, a field inside nothing or a text
that is no number makes the whole unknown, unless `||` or `&&` is decided without it; unknown is not true. Over a group nothing is rounded (`exact.py`).

**Bounded.** A part of a document that CEL sees has at most 10,000 values in 64 levels; beyond that the record is refused
(`RecordView.refusal`). Of CEL there are comparison, arithmetic, `&&`, `||`, `!`, `? :`, `in`, lists, `has`, `size`, `double`, `contains`, `startsWith` and
`endsWith`. There are no macros, which loop, and no `matches`, whose expressions can be made large. Length, nesting and tokens are limited
before CEL sees the text. So an evaluation takes time proportional to text and record, and reaches nothing but the record (B-06).

Belongs here: the language. Does not belong here: its uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple

from uow.processor.rules.exact import Program, exact_program
from uow.processor.rules.paths import MAX_CHARS, ExpressionError, Place, in_json
from uow.processor.rules.record_view import ABSENT, Numeral, RecordView
from uow.topics.grouping import Headers, Tally

MAX_DEPTH: Final = 32
"""Deepest nesting of brackets."""
MAX_TOKENS: Final = 250
"""Most names, numbers, texts and marks together."""
MAX_LEVELS: Final = 64
"""Deepest nesting of what an expression sees of a record."""
MAX_VALUES: Final = 10_000
"""Most values in lists and objects that an expression sees of a record: CEL takes some three microseconds for each."""
_MAX_INTEGER: Final = 2**53

_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)(?![\w.]) | (?P<text>'(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*")
    | (?P<name>[A-Za-z_]\w*) | (?P<mark>&&|\|\||==|!=|<=|>=|[-+*/<>!?:.,()\[\]]) )""",
    re.VERBOSE | re.ASCII,
)
_WORDS: Final = frozenset({"true", "false", "null", "in"})
_FUNCTIONS: Final = frozenset({"has", "size", "double", "contains", "startsWith", "endsWith"})
_PLACES: Final = frozenset({"path", "header", "key"})
_AGGREGATES: Final = {"sum": "total", "min": "least", "max": "most", "count": "components"}
"""Functions of a predicate, and the figure of a `Tally` that each asks for."""
_Find = Callable[[RecordView], Any]
_AMOUNT: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_MAX_DIGITS: Final = 40
_UNKNOWN: Final = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of an evaluation, all of which mean that the result is unknown."""


class _Token(NamedTuple):
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression over one record. Two are equal when their texts are; made by `compile_expression`.

    Attributes:
        source: As it was written.
    """

    source: str
    _value: _Find = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_value", _valued(self.source))

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return Expression, (self.source,)  # a program of CEL cannot be pickled, and need not be

    def boolean(self, record: RecordView) -> bool:
        """True if it is true of the record; not if it is false or unknown, or no truth at all."""
        value = self._value(record)
        return value is True or value == "true"

    def text(self, record: RecordView) -> str | None:
        """Its text, a number of the record as it is written there; None if it is unknown, or no single value."""
        return _text(self._value(record))


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition over running figures of a group (B-41), an `uow.topics.grouping.Measure`. Made by `compile_predicate`.

    Attributes:
        source: As it was written. Two are equal when these are.
    """

    source: str
    _places: tuple[tuple[str, _Find], ...] = field(init=False, repr=False, compare=False)
    _figures: tuple[tuple[str, int], ...] = field(init=False, repr=False, compare=False)
    _program: Callable[[Sequence[Any]], Any] = field(init=False, repr=False, compare=False)
    _exact: Program | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reader = _OverGroup(self.source)
        object.__setattr__(self, "_program", _program(reader.cel, len(reader.figures)))
        object.__setattr__(self, "_exact", exact_program(reader.cel))
        object.__setattr__(self, "_places", tuple(reader.places.items()))
        object.__setattr__(self, "_figures", tuple(reader.figures))

    def __reduce__(self) -> tuple[type[Predicate], tuple[str]]:
        return Predicate, (self.source,)

    def measure(self, headers: Headers, value: bytes | None) -> tuple[Decimal, ...] | str:
        """The number at each place that it sums up, in one component; or why one cannot be read. If it only counts, a single 0."""
        record, numbers = RecordView(None, value, headers), []
        for text, find in self._places:
            amount = _amount(find(record))
            if record.refusal is not None:
                return record.refusal.text
            if record.unread is not None:
                return record.unread.detail
            if amount is None:
                return f"{text} is no decimal number"
            numbers.append(amount)
        return tuple(numbers or [Decimal(0)])

    def holds(self, tallies: Sequence[Tally]) -> bool:
        """True if it is true of a group with these figures; not if it is unknown. Nothing is rounded, unless lists or texts are in it."""
        figures = [getattr(tallies[place], figure) for figure, place in self._figures]
        if self._exact is not None:
            return self._exact([Fraction(each) for each in figures]) is True
        return self._program([float(each) for each in figures]) is True


def compile_expression(text: str) -> Expression:
    """Reads an expression over one record.

    Raises:
        ExpressionError: It is none, or not within the bounds.
    """
    return Expression(text)


def compile_predicate(text: str) -> Predicate:
    """Reads an expression over a group: `sum(PLACE)`, `min(PLACE)`, `max(PLACE)` and `count()` stand where an `Expression` has places.

    Raises:
        ExpressionError: It is none, or not within the bounds.
    """
    return Predicate(text)


# -- values


def _valued(source: str) -> _Find:
    if source == "key" or re.match(r"(header|path):(?!:)", source):
        return Place(source).value
    reader = _OverRecord(source)
    finds = tuple(reader.places.values())
    program = _program(reader.cel, len(finds))

    def value(record: RecordView) -> Any:
        seen = _Seen()
        try:
            return program([seen.for_cel(find(record)) for find in finds])
        except _BeyondBoundsError as error:
            record.refused(str(error))
            return None

    return value


def _program(cel_text: str, variables: int) -> Callable[[Sequence[Any]], Any]:
    """Values of the variables `v0`, `v1`, ... give a result, or None for unknown."""
    import cel  # brings a terminal library along, so only where an expression is used

    try:
        program = cel.compile(cel_text)
    except ValueError as error:
        reason = re.search(r"ERROR: \S+ (?:Syntax error: )?(.*?)(?: expecting|$)", str(error), re.MULTILINE)
        raise ExpressionError(f"is no expression: {reason[1] if reason else 'cannot be read'}"[:200]) from None
    names = [f"v{index}" for index in range(variables)]

    def evaluate(values: Sequence[Any]) -> Any:
        try:
            return program.execute(dict(zip(names, values, strict=True)))
        except _UNKNOWN:
            return None

    return evaluate


class _BeyondBoundsError(Exception):
    """A part of a document is more than an expression looks at; the message says why."""


class _Seen:
    """The parts of a record that an evaluation sees, counted."""

    def __init__(self) -> None:
        self._values = 0

    def for_cel(self, value: Any, level: int = 0) -> Any:
        """A part of a document with numbers as CEL has them; what is absent is null.

        Raises:
            _BeyondBoundsError: It is too large or too deep.
        """
        match value:
            case Numeral():
                return float(value)
            case dict():
                self._enter(value, level)
                return {key: self.for_cel(each, level + 1) for key, each in value.items()}
            case list():
                self._enter(value, level)
                return [self.for_cel(each, level + 1) for each in value]
            case _:
                return None if value is ABSENT else value

    def _enter(self, several: Sized, level: int) -> None:
        self._values += len(several)
        if self._values > MAX_VALUES:
            raise _BeyondBoundsError(f"more than {MAX_VALUES} values where an expression looks")
        if level >= MAX_LEVELS:
            raise _BeyondBoundsError(f"more than {MAX_LEVELS} levels where an expression looks")


def _text(value: Any) -> str | None:
    match value:
        case str():
            return str(value)
        case bool():
            return "true" if value else "false"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) <= _MAX_INTEGER else repr(value)
        case int():
            return str(value)
        case _:
            return None


def _or_number(find: _Find, default: Numeral) -> _Find:
    def found(record: RecordView) -> Any:
        value = find(record)
        return default if value is ABSENT or value is None else value

    return found


def _amount(value: Any) -> Decimal | None:
    text = None if isinstance(value, bool) else _text(value)
    if text is None or len(text) > _MAX_DIGITS or not _AMOUNT.fullmatch(text):
        return None
    return Decimal(text)


# -- the text


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"is longer than {MAX_CHARS} characters")
    tokens: list[_Token] = []
    at, end, depth = 0, len(text.rstrip()), 0
    while at < end:
        found = _TOKEN.match(text, at, end)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise ExpressionError(f"at character {at + 1}: {text[at]!r} begins nothing that is known")
        kind = found.lastgroup or ""
        tokens.append(_Token(kind, found[kind]))
        depth += (found[kind] in ("(", "[")) - (found[kind] in (")", "]"))
        if depth > MAX_DEPTH:
            raise ExpressionError(f"is nested deeper than {MAX_DEPTH}")
        at = found.end()
    if not tokens:
        raise ExpressionError("is empty")
    if len(tokens) > MAX_TOKENS:
        raise ExpressionError(f"has more than {MAX_TOKENS} parts")
    return tokens


_END: Final = _Token("end", "")


class _Reader:
    """Reads an expression, and puts variables of CEL in the place of what is read from records.

    Attributes:
        places: How the value at each place is found, by the place's text.
        cel: The text for CEL, in which a variable stands for each operand that is none of CEL's own.
    """

    def __init__(self, source: str) -> None:
        self.places: dict[str, _Find] = {}
        self._tokens = _tokens(source)
        self._next = 0
        self.cel = self._translated()

    def _operand(self, name: str, is_call: bool) -> str:
        """The text for CEL of a name that is no word of the language and follows no dot."""
        raise NotImplementedError

    def _look(self, ahead: int = 0) -> _Token:
        at = self._next + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _need(self, mark: str, after: str) -> None:
        if self._look().text != mark:
            raise ExpressionError(f"expected {mark} after {after}, found {self._look().text or 'the end'!r}")
        self._next += 1

    def _translated(self) -> str:
        parts: list[str] = []
        before = _END
        while (token := self._look()) is not _END:
            follows = before.text in (")", "]") or (before.kind in ("name", "number", "text") and before.text != "in")
            if follows and token.kind != "mark" and token.text != "in":
                raise ExpressionError(f"expected an operator before {token.text[:50]!r}")
            if token.text == "." and not follows:
                raise ExpressionError("expected a name before '.'")
            self._next += 1
            if token.kind == "name":
                parts.append(self._named(token.text, after_dot=before.text == "."))
            elif token.kind == "number":
                parts.append(self._number(token.text, is_index=before.text == "[" and self._look().text == "]"))
            else:
                parts.append(token.text)
            before = self._tokens[self._next - 1]
        return " ".join(parts)

    @staticmethod
    def _number(text: str, *, is_index: bool) -> str:
        if not text.isdigit():
            return text
        if int(text) > _MAX_INTEGER:
            raise ExpressionError(f"{text} is too large to be exact; compare it as a text")
        return text if is_index else f"{text}.0"

    def _named(self, name: str, *, after_dot: bool) -> str:
        is_call = self._look().text == "("
        if is_call and (after_dot or name in _WORDS) and name not in _FUNCTIONS | {"in"}:
            raise ExpressionError(f"there is no function {name}")
        return name if after_dot or name in _WORDS else self._operand(name, is_call)

    def _place(self, name: str) -> str:
        """The text of the place that `path(...)`, `header(...)` or `key()` names, once it is known by it."""
        self._need("(", name)
        argument = ""
        if name != "key":
            token = self._look()
            if token.kind != "text" or "\\" in token.text:
                raise ExpressionError(f"expected a text without backslashes in {name}()")
            self._next += 1
            argument = f":{token.text[1:-1]}"
        self._need(")", f"{name}({argument[1:]}")
        return self._known(Place(f"{name}{argument}").value, f"{name}{argument}")

    def _known(self, find: _Find, text: str) -> str:
        self.places.setdefault(text, find)
        return text

    def _index(self, text: str) -> int:
        return list(self.places).index(text)


class _OverRecord(_Reader):
    """One variable for each place."""

    def _operand(self, name: str, is_call: bool) -> str:
        if is_call and name in _FUNCTIONS:
            return name
        if is_call and name in _AGGREGATES:
            raise ExpressionError(f"{name}() is of groups: complete_when = predicate(...)")
        if is_call and name not in _PLACES:
            raise ExpressionError(f"there is no function {name}")
        text = self._place(name) if is_call else self._known(in_json((name,)), f"field {name}")
        return f"v{self._index(text)}"


class _OverGroup(_Reader):
    """One variable for each figure.

    Attributes:
        figures: For each variable: which attribute of a `Tally`, and the number of the place.
    """

    def __init__(self, source: str) -> None:
        self.figures: list[tuple[str, int]] = []
        super().__init__(source)

    def _named(self, name: str, *, after_dot: bool) -> str:
        if after_dot:
            raise ExpressionError(f"a number has no {name}")
        return super()._named(name, after_dot=False)

    def _operand(self, name: str, is_call: bool) -> str:
        if not is_call or name not in _AGGREGATES:
            raise ExpressionError(f"{name} is of one record; of a group there are {', '.join(_AGGREGATES)}")
        self._need("(", name)
        place = 0 if name == "count" else self._index(self._summed_or(name))
        self._need(")", name)
        figure = _AGGREGATES[name], place
        if figure not in self.figures:
            self.figures.append(figure)
        return f"v{self.figures.index(figure)}"

    def _summed_or(self, name: str) -> str:
        """The same, with the number that counts for a component which has nothing there: `max(event_count, 0)`."""
        known = frozenset(self.places)
        text = self._summed(name)
        if self._look().text != ",":
            return text
        self._next += 1
        sign = "-" if self._look().text == "-" else ""
        self._next += len(sign)
        if self._look().kind != "number":
            raise ExpressionError(f"expected a number after the comma in {name}()")
        default, find = Numeral(sign + self._look().text), self.places[text]
        self._next += 1
        if text not in known:  # it is needed with this number alone
            del self.places[text]
        return self._known(_or_number(find, default), f"{text}, else {default}")

    def _summed(self, name: str) -> str:
        """The place inside an aggregate."""
        token = self._look()
        if token.kind != "name" or token.text in _WORDS:
            raise ExpressionError(f"expected a field, path('...') or header('...') in {name}()")
        self._next += 1
        if self._look().text == "(" and token.text in ("path", "header"):
            return self._place(token.text)
        keys = [token.text]
        while self._look().text == "." and self._look(1).kind == "name":
            keys.append(self._look(1).text)
            self._next += 2
        return self._known(in_json(tuple(keys)), f"field {'.'.join(keys)}")
