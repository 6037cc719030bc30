"""Conditions that hold for no group: found by a few cases of each, and by all cases up to a bound (B-15)."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from uow.processor.rules.possible import can_hold
from uow.topics.conditions import Age, AllOf, AnyOf, Bytes, Condition, Count, Idle, Not, PerSource, Predicate

MOST = 5
SIMPLE: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Count, st.integers(1, 7)),
    st.builds(Bytes, st.integers(1, 4)),
    st.builds(Age, st.integers(1, 4)),
    st.builds(Idle, st.integers(1, 4)),
    st.sampled_from([Predicate("a"), Predicate("b"), PerSource()]),
)


def compound(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(parts, min_size=1, max_size=3).map(tuple)
    return st.one_of(several.map(AnyOf), several.map(AllOf), parts.map(Not))


def holds(condition: Condition, size: int, weight: int, age: int, idle: int, true: set[str]) -> bool:
    match condition:
        case AnyOf(several):
            return any(holds(each, size, weight, age, idle, true) for each in several)
        case AllOf(several):
            return all(holds(each, size, weight, age, idle, true) for each in several)
        case Not(one):
            return not holds(one, size, weight, age, idle, true)
        case Count(n):
            return size >= n
        case Bytes(n):
            return weight > n
        case Age(ms):
            return age > ms
        case Idle(ms):
            return idle > ms
        case Predicate(text):
            return text in true
        case _:
            return False  # of a rule without sources


@given(st.recursive(SIMPLE, compound, max_leaves=6))
def test_a_condition_can_hold_if_one_of_all_small_groups_has_it(condition: Condition) -> None:
    small = range(7)
    expected = any(
        holds(condition, size, *others, true)
        for size in range(1, MOST + 1)
        for others in product(small, small, small)
        for true in (set(), {"a"}, {"b"}, {"a", "b"})
    )
    assert can_hold(condition, MOST, [PerSource]) is expected


def test_what_has_too_many_cases_to_be_tried_is_taken_for_possible() -> None:
    many = AllOf((*[Predicate(str(number)) for number in range(40)], Count(3), Not(Count(3))))
    assert can_hold(many, MOST)
