"""Predicates are reckoned without rounding (B-41): beside CEL, which says what a text means, on figures that need no rounding; and by hand on those that do."""

from __future__ import annotations

from decimal import Context, Decimal
from functools import partial
from random import Random
from typing import Any

import pytest

from uow.processor.rules.expressions import compile_predicate
from uow.processor.rules.paths import ExpressionError
from uow.topics.grouping import Tally


def holds(text: str, *values: str, components: int = 1) -> bool:
    """Of a group in which the fields a, b, c have these sums."""
    sums = {name: Tally(components, *[Decimal(value)] * 3) for name, value in zip("abc", values, strict=False)}
    tallies = [sums[name] for name in sorted(sums, key=lambda name: text.find(f"({name})"))]
    return compile_predicate(text).holds(tallies or [Tally(components, *[Decimal(0)] * 3)])


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("sum(a) + sum(b) >= 0.8", ("0.1", "0.7"), True),
        ("sum(a) + sum(b) == 0.3", ("0.1", "0.2"), True),
        ("sum(a) == sum(b) * 3", ("0.3", "0.1"), True),
        ("sum(a) - sum(b) > 0.1", ("0.3", "0.2"), False),
        ("sum(a) * 1.19 == 11.9", ("10.00",), True),
        ("sum(a) / 3 * 3 == sum(a)", ("0.1",), True),
        ("sum(a) == 9007199254740992", ("9007199254740993",), False),
        ("sum(a) > 9007199254740992", ("9007199254740993",), True),
        ("sum(a) == sum(b)", ("12345678901234567890.01", "12345678901234567890.02"), False),
        ("max(a) < 1e30", ("999999999999999999999999999999.9",), True),
        ("1 / 0 > 1", (), False),
        ("sum(a) / sum(b) > 1", ("1", "0"), False),
        ("!(sum(a) / sum(b) > 1)", ("1", "0"), False),
        ("sum(a) / sum(b) > 1 || count() == 1", ("1", "0"), True),
        ("sum(a) / sum(b) > 1 && count() == 2", ("1", "0"), False),
        ("sum(b) != 0 && sum(a) / sum(b) > 1", ("3", "0"), False),
        ("sum(b) == 0 ? sum(a) > 2 : sum(a) / sum(b) > 1", ("3", "0"), True),
        ("-sum(a) < -0.1", ("0.3",), True),
        ("sum(a) in [1, 2]", ("2",), True),
    ],
)
def test_a_condition_over_prices_is_what_it_looks_like_b41(text: str, values: tuple[str, ...], expected: bool) -> None:
    assert holds(text, *values) is expected


MIXED = "7" * 33 + "e966", "3" * 33 + "e-999"
"""Amounts whose sum has 2,000 digits."""


@pytest.mark.parametrize(
    "text",
    [
        "*".join(["sum(a)"] * 47) + " > 1",
        "/".join(["sum(a)"] * 47) + " < 1",
        " + ".join(f"1 / (sum(a) + {number})" for number in range(18)) + " > 0",
        "*".join(["(sum(a) - 1 / sum(a))"] * 17) + " > 1",
    ],
)
def test_a_number_that_grows_with_each_step_is_unknown_b06_b41(text: str) -> None:
    """One component took a tenth of a second."""
    mixed = str(Context(prec=4_096).add(*map(Decimal, MIXED)))
    assert not holds(text, mixed)
    assert not holds(f"!({text})", mixed)
    assert holds(f"{text} || count() == 1", mixed)


def test_as_many_amounts_as_a_text_has_room_for_are_exact_b41() -> None:
    amount = "0." + "9" * 38
    text = "*".join(["sum(a)"] * 46)
    assert holds(f"{text} < 1", amount)
    assert holds(f"{text} > 1 - 46 / 1e38", amount)
    assert holds("sum(a) * sum(b) / sum(a) == sum(b)", "9e998", "7e-998")


class Texts:
    """Texts over three sums and the count, of every form that has a meaning here, with brackets and without."""

    def __init__(self, rnd: Random) -> None:
        self._rnd = rnd

    def number(self, depth: int) -> str:
        rnd = self._rnd
        if depth == 0 or rnd.random() < 0.3:
            return rnd.choice(["sum(a)", "sum(b)", "sum(c)", "count()", "0", "1", "2", "3"])
        form = rnd.choice(["{0} + {1}", "{0} - {1}", "{0} * {1}", "-{0}", "({0})", "({2} ? {0} : {1})"])
        return form.format(self.number(depth - 1), self.number(depth - 1), self.truth(depth - 1))

    def truth(self, depth: int) -> str:
        rnd = self._rnd
        if depth == 0 or rnd.random() < 0.3:
            number = partial(self.number, min(depth, 1))
            mark = rnd.choice(["==", "!=", "<", "<=", ">", ">="])
            return rnd.choice(["true", "false"]) if rnd.random() < 0.1 else f"{number()} {mark} {number()}"
        form = rnd.choice(["{0} && {1}", "{0} || {1}", "!({0})", "({0})", "({0}) == ({1})", "{0} ? {1} : {0}"])
        return form.format(self.truth(depth - 1), self.truth(depth - 1))


def test_where_nothing_is_rounded_a_text_means_what_cel_says_b41() -> None:
    rnd = Random(41)
    texts, found = Texts(rnd), {True: 0, False: 0}
    for _ in range(1_500):
        text = texts.truth(3)
        try:
            predicate: Any = compile_predicate(text)
        except ExpressionError:  # too long, or a choice inside a choice, which needs brackets
            continue
        assert predicate._exact is not None, text
        for _ in range(4):
            names = len(predicate._places) or 1
            tallies = [Tally(rnd.randint(0, 3), *[Decimal(rnd.randint(-2, 3))] * 3) for _ in range(names)]
            by_cel = predicate._program(
                [float(getattr(tallies[place], figure)) for figure, place in predicate._figures]
            )
            assert predicate.holds(tallies) is (by_cel is True), (text, tallies)
            found[by_cel is True] += 1
    assert min(found.values()) > 1_000, found
