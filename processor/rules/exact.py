"""Conditions over the figures of a group, reckoned without rounding: `sum(price) + sum(shipping) >= 0.8` is what it looks like. Pure.

CEL has numbers of 64 bits: 0.1 and 0.7 are less than 0.8 there, and 1 / 0 is more than 1. So comparison, arithmetic, `&&`, `||`, `!` and `? :` over numbers are
evaluated here, on fractions. An expression with anything else in it (lists, texts) is left to CEL.

Unknown is what cannot be reckoned: a division by zero, a sum of truths, a result of more than `MAX_BITS`. It is decided without it where `||`, `&&` or `? :` can do without.

Belongs here: that evaluation. Does not belong here: what an expression may be made of (`uow.processor.rules.expressions`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

Value = Fraction | bool | None
"""None: unknown."""
Program = Callable[[Sequence[Fraction]], Value]

MAX_BITS: Final = 32_768
"""Most bits of numerator or denominator. As many amounts of 40 digits as a text has room for need a fifth of it; those of the largest and smallest exponents would
grow with each step, and a component would take a tenth of a second."""

_PARTS: Final = re.compile(
    r"\s*(?:v([0-9]+)|([0-9][0-9.]*(?:[eE][+-]?[0-9]+)?)|(true|false)|(&&|\|\||[=!<>]=|[-+*/<>!?:()]))", re.ASCII
)
_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_RECKONED: Final[dict[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


class _Other(Exception):
    """There is something else in the text."""


def exact_program(text: str) -> Program | None:
    """The meaning of a text that CEL has accepted, in which `v0`, `v1`, ... stand for figures; None: something in it is for CEL alone."""
    try:
        return _Reader(text).whole()
    except _Other:
        return None


class _Reader:
    def __init__(self, text: str) -> None:
        self._parts: list[re.Match[str]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _PARTS.match(text, at)
            if found is None:
                raise _Other
            self._parts.append(found)
            at = found.end()
        self._next = 0

    def whole(self) -> Program:
        found = self._choice()
        if self._next < len(self._parts):
            raise _Other
        return found

    def _take(self, *marks: str) -> str:
        """The next part, if it is one of these marks; else nothing."""
        if self._next < len(self._parts) and self._parts[self._next][4] in marks:
            self._next += 1
            return self._parts[self._next - 1][4]
        return ""

    def _choice(self) -> Program:
        asked = self._either()
        if not self._take("?"):
            return asked
        first = self._choice()
        if not self._take(":"):
            raise _Other
        second = self._choice()

        def chosen(figures: Sequence[Fraction]) -> Value:
            truth = asked(figures)
            return first(figures) if truth is True else second(figures) if truth is False else None

        return chosen

    def _either(self) -> Program:
        return self._joined(self._both, "||", decides=True)

    def _both(self) -> Program:
        return self._joined(self._compared, "&&", decides=False)

    def _joined(self, part: Callable[[], Program], mark: str, *, decides: bool) -> Program:
        """Parts of which one that `decides` is enough; unknown if none does, and one is unknown or no truth."""
        parts = [part()]
        while self._take(mark):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]

        def joined(figures: Sequence[Fraction]) -> Value:
            found = [each(figures) for each in parts]
            if any(each is decides for each in found):
                return decides
            return (not decides) if all(isinstance(each, bool) for each in found) else None

        return joined

    def _compared(self) -> Program:
        found = self._sum()
        while mark := self._take("==", "!=", *_COMPARED):
            found = _comparison(mark, found, self._sum())
        return found

    def _sum(self) -> Program:
        return self._reckoned(self._product, "+", "-")

    def _product(self) -> Program:
        return self._reckoned(self._single, "*", "/")

    def _reckoned(self, part: Callable[[], Program], *marks: str) -> Program:
        found = part()
        while mark := self._take(*marks):
            found = _reckoning(_RECKONED[mark], found, part())
        return found

    def _single(self) -> Program:
        if self._take("!"):
            truth = self._single()
            return lambda figures: None if not isinstance(said := truth(figures), bool) else not said
        if self._take("-"):
            number = self._single()
            return lambda figures: -said if isinstance(said := number(figures), Fraction) else None
        if self._take("("):
            inside = self._choice()
            if not self._take(")"):
                raise _Other
            return inside
        if self._next == len(self._parts):
            raise _Other
        place, number_text, word = self._parts[self._next].group(1, 2, 3)
        self._next += 1
        if place is not None:
            return operator.itemgetter(int(place))
        if number_text is None and word is None:
            raise _Other
        value = Fraction(number_text) if number_text is not None else word == "true"
        return lambda figures: value


def _comparison(mark: str, one: Program, other: Program) -> Program:
    def compared(figures: Sequence[Fraction]) -> Value:
        left, right = one(figures), other(figures)
        if left is None or right is None:
            return None
        if mark in ("==", "!="):
            return (type(left) is type(right) and left == right) is (mark == "==")
        return _COMPARED[mark](left, right) if type(left) is type(right) else None

    return compared


def _reckoning(reckon: Callable[[Fraction, Fraction], Fraction], one: Program, other: Program) -> Program:
    def reckoned(figures: Sequence[Fraction]) -> Value:
        left, right = one(figures), other(figures)
        if not (isinstance(left, Fraction) and isinstance(right, Fraction)):
            return None
        try:
            found = reckon(left, right)
        except ZeroDivisionError:
            return None
        return found if max(found.numerator.bit_length(), found.denominator.bit_length()) <= MAX_BITS else None

    return reckoned
