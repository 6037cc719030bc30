"""The language of a route's `when`: a small part of SQL, as JMS selectors are, over the headers of a unit (W-98, W-99). Pure.

    uow-priority >= 7
    region = 'west' AND NOT (uow-outcome = 'partial' OR customer LIKE 'test-%')
    uow-type IN ('order', 'refund') AND discount IS NOT NULL AND uow-size BETWEEN 2 AND 99

    condition  = conjunction { OR conjunction }
    conjunction = term { AND term }
    term       = NOT term | '(' condition ')' | name test
    test       = ( '=' | '<>' ) literal | ( '<' | '<=' | '>' | '>=' ) number | IS [ NOT ] NULL
               | [ NOT ] ( BETWEEN number AND number | IN '(' literal { ',' literal } ')' | LIKE text )

A name is a header's: letters, digits, `_`, `.` and `-`, any other in double quotes. A text stands in single quotes, a quote in it twice. In
the text of LIKE `%` stands for any characters and `_` for one. Words are written large or small.

A header's value is text. Compared with a number it is read as a decimal number. As in SQL there are three results: a test of a header that is
absent, or is not UTF-8, or not a number where one is needed, is unknown; NOT of unknown is unknown. Of repeated headers the first
counts. `uow-priority` is 4 on a unit without it (`docs/wire-format.md#headers-of-a-component`).

Conditions cannot reach Python, are parsed once, and evaluating LIKE takes at most time proportional to text length times pattern length.

Belongs here: the language. Does not belong here: the choice of a topic (`uow.topics.routes`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

MAX_CHARS: Final = 2_000
"""Longest condition."""
MAX_DEPTH: Final = 32
"""Deepest nesting of parentheses and NOT."""
_MAX_DIGITS: Final = 40
_DEFAULTS: Final = {"uow-priority": "4"}

_Test = Callable[[Mapping[str, str]], bool | None]
_Literal = str | Decimal

_WORDS: Final = frozenset({"AND", "OR", "NOT", "IS", "NULL", "IN", "LIKE", "BETWEEN"})
_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<number>-?[0-9]+(?:\.[0-9]+)?)(?![\w.-]) | '(?P<text>(?:[^']|'')*)' | (?P<name>[A-Za-z_][\w.-]*)
    | "(?P<quoted>[^"]+)" | (?P<mark><>|<=|>=|[=<>(),]) )""",
    re.VERBOSE | re.ASCII,
)
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_ORDERS: Final[Mapping[str, Callable[[Decimal, Decimal], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class SelectorError(ValueError):
    """A text that is not a condition; the message says at which character, and what was expected there."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A condition over the headers of a unit. Two are equal when their texts are.

    Attributes:
        text: As it was written.
        names: Headers that it tests.

    Raises:
        SelectorError: The text is not a condition.
    """

    text: str
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    _test: _Test = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parser = _Parser(self.text)
        object.__setattr__(self, "_test", parser.whole())
        object.__setattr__(self, "names", frozenset(parser.names))

    def __reduce__(self) -> tuple[type[Selector], tuple[str]]:
        return Selector, (self.text,)  # the parsed form cannot be pickled, and need not be

    def accepts(self, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """True if the condition is true for a unit with these headers; not if it is false or unknown."""
        said: dict[str, str] = {}
        for name, raw in headers:
            if name in self.names and name not in said and raw is not None:
                try:
                    said[name] = raw.decode()
                except UnicodeDecodeError:
                    continue
        return self._test(_DEFAULTS | said) is True


class _Token(NamedTuple):
    kind: str
    value: str
    at: int


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise SelectorError(f"is longer than {MAX_CHARS} characters")
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        self.names: set[str] = set()

    def whole(self) -> _Test:
        test = self._condition()
        if self._look().kind != "end":
            raise self._expected("AND, OR or the end")
        return test

    # -- tokens

    def _look(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *values: str) -> str | None:
        """The next token if it is one of these words or marks."""
        token = self._look()
        if token.kind not in ("word", "mark") or token.value not in values:
            return None
        self._next += 1
        return token.value

    def _need(self, value: str) -> None:
        if self._take(value) is None:
            raise self._expected(value)

    def _expected(self, what: str) -> SelectorError:
        token = self._look()
        found = repr(token.value) if token.kind != "end" else "the end"
        return SelectorError(f"at character {token.at + 1}: expected {what}, found {found}")

    # -- grammar

    def _condition(self) -> _Test:
        return self._joined("OR", self._conjunction, True)

    def _conjunction(self) -> _Test:
        return self._joined("AND", self._term, False)

    def _joined(self, word: str, part: Callable[[], _Test], decisive: bool) -> _Test:
        tests = [part()]
        while self._take(word):
            tests.append(part())
        return tests[0] if len(tests) == 1 else _joined(tests, decisive)

    def _term(self) -> _Test:
        if self._depth == MAX_DEPTH:
            raise SelectorError(f"at character {self._look().at + 1}: nested deeper than {MAX_DEPTH}")
        self._depth += 1
        if self._take("NOT"):
            test = _negated(self._term())
        elif self._take("("):
            test = self._condition()
            self._need(")")
        else:
            test = self._of_header(self._name())
        self._depth -= 1
        return test

    def _of_header(self, name: str) -> _Test:
        if mark := self._take("=", "<>"):
            test = _is_one_of(name, [self._literal()])
            return test if mark == "=" else _negated(test)
        if mark := self._take(*_ORDERS):
            return _ordered(name, _ORDERS[mark], self._number())
        if self._take("IS"):
            negated = self._take("NOT")
            self._need("NULL")
            return lambda said: (name in said) is bool(negated)
        negated = self._take("NOT")
        test = self._of_set(name)
        return _negated(test) if negated else test

    def _of_set(self, name: str) -> _Test:
        if self._take("BETWEEN"):
            low = self._number()
            self._need("AND")
            return _joined([_ordered(name, operator.ge, low), _ordered(name, operator.le, self._number())], False)
        if self._take("IN"):
            self._need("(")
            literals = [self._literal()]
            while self._take(","):
                literals.append(self._literal())
            self._need(")")
            return _is_one_of(name, literals)
        if self._take("LIKE"):
            if self._look().kind != "text":
                raise self._expected("a text in single quotes")
            pattern = self._value()
            return lambda said: _is_like(said[name], pattern) if name in said else None
        raise self._expected("=, <>, <, <=, >, >=, IS, BETWEEN, IN or LIKE")

    def _name(self) -> str:
        if self._look().kind != "name":
            raise self._expected("the name of a header")
        name = self._value()
        self.names.add(name)
        return name

    def _value(self) -> str:
        self._next += 1
        return self._tokens[self._next - 1].value

    def _literal(self) -> _Literal:
        if self._look().kind == "text":
            return self._value()
        if self._look().kind == "number":
            return Decimal(self._value())
        raise self._expected("a number, or a text in single quotes")

    def _number(self) -> Decimal:
        if self._look().kind != "number":
            raise self._expected("a number")
        return Decimal(self._value())


def _tokens(text: str) -> list[_Token]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at, end)
        if found is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise SelectorError(f"at character {start + 1}: {text[start]} begins nothing that is known")
        kind = found.lastgroup or ""
        value, start = found[kind], found.end() - len(found[0].lstrip())
        if kind == "name" and value.upper() in _WORDS:
            kind, value = "word", value.upper()
        elif kind == "quoted":
            kind = "name"
        elif kind == "text":
            value = value.replace("''", "'")
        tokens.append(_Token(kind, value, start))
        at = found.end()
    return [*tokens, _Token("end", "", end)]


def _joined(tests: list[_Test], decisive: bool) -> _Test:
    """OR, for which one true test is enough (`decisive` True), or AND, for which one false test is enough."""

    def test(said: Mapping[str, str]) -> bool | None:
        answers = [each(said) for each in tests]
        if decisive in answers:
            return decisive
        return None if None in answers else not decisive

    return test


def _negated(of: _Test) -> _Test:
    def test(said: Mapping[str, str]) -> bool | None:
        answer = of(said)
        return None if answer is None else not answer

    return test


def _is_one_of(name: str, literals: list[_Literal]) -> _Test:
    tests = [_equal(name, literal) for literal in literals]
    return tests[0] if len(tests) == 1 else _joined(tests, True)


def _equal(name: str, literal: _Literal) -> _Test:
    if isinstance(literal, Decimal):
        return _ordered(name, operator.eq, literal)
    return lambda said: said[name] == literal if name in said else None


def _ordered(name: str, compare: Callable[[Decimal, Decimal], bool], number: Decimal) -> _Test:
    def test(said: Mapping[str, str]) -> bool | None:
        text = said.get(name, "")
        if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
            return None
        return compare(Decimal(text), number)

    return test


def _is_like(text: str, pattern: str) -> bool:
    """True if a text matches a pattern of LIKE. Only the last `%` is ever retried, which is sufficient."""
    at = here = 0
    star, resume = -1, 0
    while at < len(text):
        if here < len(pattern) and pattern[here] == "%":
            star, resume = here, at
            here += 1
        elif here < len(pattern) and pattern[here] in ("_", text[at]):
            at, here = at + 1, here + 1
        elif star >= 0:
            resume += 1
            at, here = resume, star + 1
        else:
            return False
    return not pattern[here:].strip("%")
