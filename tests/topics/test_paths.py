"""The path map: the first claim of an id counts until the owner of its partition ends it (W-105, W-106)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uow.topics.path_map import (
    HEED_MS,
    NONCE_BYTES,
    PathMap,
    claim_key,
    claim_value,
)

HOUR = 3_600_000


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def claim(paths: PathMap, group_id: bytes, partition: int, number: int = 0, at: int = 0) -> bytes:
    key = claim_key(group_id, nonce(number))
    paths.read(key, claim_value(partition), at)
    return key


@pytest.fixture
def paths() -> PathMap:
    return PathMap()


def test_first_claim_counts_whoever_else_claims_w105(paths: PathMap) -> None:
    claim(paths, b"a", 3, 1)
    claim(paths, b"a", 1, 2)
    assert paths.get(b"a") == 3
    assert [*paths] == [b"a"]
    assert (paths.claimed[3], paths.claimed[1]) == (1, 0)


def test_claim_that_is_read_twice_is_one_claim_w105(paths: PathMap) -> None:
    claim(paths, b"a", 3, 1)
    key = claim(paths, b"a", 3, 1)
    paths.read(key, None, 0)
    assert paths.get(b"a") is None


def test_next_claim_counts_when_the_first_is_ended_w106(paths: PathMap) -> None:
    first = claim(paths, b"a", 3, 1)
    claim(paths, b"a", 1, 2)
    paths.read(first, None, 0)
    paths.read(first, None, 0)  # a tombstone of what is gone
    assert paths.get(b"a") == 1
    assert (paths.claimed[3], paths.claimed[1]) == (0, 1)
    paths.read(claim_key(b"b", nonce(7)), None, 0)
    assert paths.get(b"b") is None


def test_later_claim_that_is_ended_changes_nothing_w106(paths: PathMap) -> None:
    claim(paths, b"a", 3, 1)
    paths.read(claim(paths, b"a", 1, 2), None, 0)
    assert paths.get(b"a") == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"1"),
        (b"\x02a\0" + nonce(1), b"1"),
        (b"\x01a", b"1"),
        (claim_key(b"a", nonce(1)), b"one"),
        (claim_key(b"a", nonce(1)), b""),
    ],
)
def test_record_that_is_no_claim_is_left_alone(paths: PathMap, key: bytes | None, value: bytes) -> None:
    paths.read(key, value, 0)
    assert [*paths] == []


@given(st.binary(min_size=1, max_size=255), st.integers(0, 10_000))
def test_any_id_can_be_claimed(group_id: bytes, partition: int) -> None:
    paths = PathMap()
    claim(paths, group_id, partition)
    assert paths.get(group_id) == partition


@pytest.mark.parametrize("seed", range(20))
def test_compaction_at_any_moment_changes_nothing_w105(seed: int) -> None:
    """Each claim has a key of its own, so all that is left of the log are the claims that are not ended, in their order."""
    rnd = Random(seed)
    log: list[tuple[bytes, bytes | None]] = []
    for number in range(60):
        if log and rnd.random() < 0.3:
            log.append((rnd.choice(log)[0], None))
        else:
            log.append((claim_key(b"g%d" % rnd.randrange(4), nonce(number)), claim_value(rnd.randrange(3))))
    last = {key: index for index, (key, _) in enumerate(log)}
    compacted = [row for index, row in enumerate(log) if last[row[0]] == index]
    whole, left = PathMap(), PathMap()
    for key, value in log:
        whole.read(key, value, 0)
    for key, value in compacted:
        left.read(key, value, 0)
    assert {each: whole.get(each) for each in whole} == {each: left.get(each) for each in left}


def test_id_that_is_not_placed_belongs_where_it_is_asked_for(paths: PathMap) -> None:
    claim(paths, b"a", 3)
    placement = paths.partition_for(1)
    assert (placement(b"a", 4), placement(b"b", 4)) == (3, 1)


def test_least_claimed_partition_is_chosen_of_equals_the_next_from_the_hash_w105(paths: PathMap) -> None:
    assert paths.least_claimed(2, 4) == 2
    for number, partition in enumerate([2, 3, 3, 1]):
        claim(paths, b"g%d" % number, partition)
    assert paths.least_claimed(1, 4) == 0
    claim(paths, b"more", 0)
    assert paths.least_claimed(3, 4) == 0
    assert paths.least_claimed(3, 6) == 4  # partitions that were added (W-215)


# -- a placement ends


def test_placement_ends_only_when_nobody_knows_its_id_and_not_before_its_time_w106(paths: PathMap) -> None:
    key = claim(paths, b"a", 1, at=100)
    assert paths.look_at(1) == 100
    assert paths.leave(1, 100, HOUR, lambda group_id: False) == []
    assert paths.leave(1, 101, HOUR, lambda group_id: True) == []
    assert paths.look_at(1) == HOUR, "looked at again an hour later"
    assert paths.leave(1, HOUR, 2 * HOUR, lambda group_id: False) == []
    assert paths.leave(1, HOUR + 1, 2 * HOUR, lambda group_id: False) == [key]
    assert paths.get(b"a") == 1, "until the tombstone is read"
    paths.read(key, None, 0)
    assert (paths.get(b"a"), paths.look_at(1)) == (None, None)


def test_all_claims_of_an_id_end_together_w106(paths: PathMap) -> None:
    keys = [claim(paths, b"a", partition, partition) for partition in (2, 1, 0)]
    assert paths.leave(2, 1, HOUR, lambda group_id: False) == keys
    assert paths.leave(1, 1, HOUR, lambda group_id: False) == [], "it was never placed there"


def test_id_whose_placement_is_ending_is_claimed_again_and_a_rolled_back_end_leaves_it_where_it_was_w106(
    paths: PathMap,
) -> None:
    claim(paths, b"a", 2, 1)
    assert paths.unknown([b"a", b"b"]) == [b"b"]
    paths.leave(2, 1, HOUR, lambda group_id: False)
    assert paths.unknown([b"a"]) == [b"a"]
    claim(paths, b"a", 0, 2)
    paths.on_claims_read([b"a", b"c"])  # and no tombstone came before it
    assert (paths.get(b"a"), paths.unknown([b"a"])) == (2, [])
    (first, second) = paths.leave(2, HOUR + 1, 2 * HOUR, lambda group_id: False)
    paths.read(first, None, 0)
    paths.read(second, None, 0)
    claim(paths, b"a", 0, 3)
    assert paths.get(b"a") == 0


def test_placement_that_is_ending_is_not_trusted_because_others_claim_or_half_of_its_end_was_read_w106(
    paths: PathMap,
) -> None:
    claim(paths, b"a", 2, 1)
    claim(paths, b"a", 2, 2)
    first, second = paths.leave(2, 1, HOUR, lambda group_id: False)
    claim(paths, b"a", 0, 3)  # by a sender, before the tombstones
    assert paths.unknown([b"a"]) == [b"a"]
    paths.read(first, None, 0)
    assert (paths.get(b"a"), paths.unknown([b"a"])) == (2, [b"a"])
    paths.read(second, None, 0)
    assert (paths.get(b"a"), paths.unknown([b"a"])) == (0, [])


def test_map_that_is_cleared_begins_anew(paths: PathMap) -> None:
    claim(paths, b"a", 2)
    paths.clear()
    assert ([*paths], paths.look_at(2), paths.claimed[2]) == ([], None, 0)


# -- whoever may claim may write anything


HOSTILE = [
    b"9" * 4_301,
    b"9" * 11,
    b"",
    b"-1",
    b"+1",
    b" 1",
    b"1_0",
    b"1e3",
    "\N{ARABIC-INDIC DIGIT THREE}".encode(),
    "\N{SUPERSCRIPT TWO}".encode(),
    b"\0",
    b"one",
    b"4",
    b"99",
    b"2147483648",
    b"9" * 10,
    b"0" * 10 + b"99",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_claim_behind_one_that_is_ignored_counts_w105(value: bytes) -> None:
    paths = PathMap(4)
    bad = claim_key(b"a", nonce(1))
    paths.read(bad, value, 0)
    assert (paths.get(b"a"), [*paths], paths.unknown([b"a"])) == (None, [], [b"a"])
    claim(paths, b"a", 3, 2)
    claim(paths, b"b", 1, 3)
    assert (paths.get(b"a"), paths.get(b"b"), paths.ignored) == (3, 1, 1)
    assert paths.claimed == {3: 1, 1: 1}
    paths.read(bad, None, 0)
    assert (paths.get(b"a"), paths.ignored_due()) == (3, None)


@pytest.mark.parametrize("value", HOSTILE)
def test_claim_that_is_ignored_is_ended_by_whoever_ends_placements(value: bytes) -> None:
    paths = PathMap(4)
    bad = claim_key(b"a", nonce(1))
    paths.read(bad, value, 100)
    paths.read(bad, value, 100)
    assert paths.ignored == 1
    assert paths.ignored_due() == 100 + HEED_MS
    assert paths.leave_ignored(100, HOUR) == []
    assert paths.leave_ignored(100 + HEED_MS, HOUR) == [bad]
    assert paths.leave_ignored(100 + HEED_MS, HOUR) == [], "it may be on its way"
    assert paths.leave_ignored(100 + HEED_MS + HOUR, HOUR) == [bad], "that was rolled back"


def test_claim_that_borrows_the_key_of_a_good_one_does_not_end_it(paths: PathMap) -> None:
    key = claim(paths, b"a", 3)
    paths.read(key, b"9" * 4_301, 0)
    assert paths.leave_ignored(HOUR, HOUR) == []
    assert paths.get(b"a") == 3


@pytest.mark.parametrize("group_id", [b"", b"x" * 257])
def test_claim_for_what_can_be_no_id_is_ignored(group_id: bytes, paths: PathMap) -> None:
    paths.read(claim_key(group_id, nonce(1)), b"1", 0)
    assert ([*paths], paths.ignored) == ([], 1)


def test_claim_for_a_partition_that_is_added_before_it_is_ended_takes_its_place_w215() -> None:
    """Who claimed knew of the partition before us; all who know it agree."""
    paths = PathMap(4)
    claim(paths, b"a", 5, 1)
    claim(paths, b"a", 2, 2)
    claim(paths, b"b", 99, 3)
    assert paths.asks_for_count
    assert paths.get(b"a") == 2
    paths.grow(8)
    assert (paths.get(b"a"), paths.get(b"b"), paths.claimed[2], paths.claimed[5]) == (5, None, 0, 1)
    later = PathMap(8)
    claim(later, b"a", 5, 1)
    claim(later, b"a", 2, 2)
    assert later.get(b"a") == 5


def test_placements_on_partitions_that_nobody_here_owns_leave_no_trace_once_they_are_ended() -> None:
    """Else a worker's memory grows with every id that was ever placed elsewhere."""
    paths = PathMap(4)
    for number in range(1_000):
        paths.read(claim(paths, b"g%d" % number, 3, number), None, 0)
        paths.read(claim_key(b"h%d" % number, nonce(number)), b"99", 0)
        paths.read(claim_key(b"h%d" % number, nonce(number)), None, 0)
    assert paths.memory_bytes == 0
    assert sum(len(each) for each in vars(paths).values() if isinstance(each, dict | set)) <= 2, "counters by partition"
    assert not paths._look[3]


def test_claims_by_the_thousand_for_one_id_cost_no_more_than_for_many() -> None:
    """Each is looked for among the others of its id."""
    paths = PathMap(4)
    for number in range(50_000):
        claim(paths, b"a", number % 7, number)
    assert paths.get(b"a") == 0
    keys = paths.leave(0, 1, HOUR, lambda group_id: False)
    for key in keys:
        paths.read(key, None, 0)
    assert paths.get(b"a") is None


def test_no_more_are_ended_in_one_transaction_than_it_holds() -> None:
    paths = PathMap(4)
    for number in range(25_000):
        claim(paths, b"g%d" % number, 1, number)
        paths.read(claim_key(b"bad", nonce(number)), b"x", 0)
    ended = [len(paths.leave(1, HOUR, HOUR, lambda group_id: False)) for _ in range(4)]
    assert ended == [10_000, 10_000, 5_000, 0]
    assert [len(paths.leave_ignored(HOUR, HOUR)) for _ in range(4)] == [10_000, 10_000, 5_000, 0]


@given(
    st.lists(
        st.tuples(
            st.none()
            | st.binary(max_size=30)
            | st.builds(claim_key, st.binary(max_size=3), st.integers(0, 5).map(nonce)),
            st.none() | st.sampled_from(HOSTILE) | st.binary(max_size=12) | st.integers(0, 9).map(claim_value),
        ),
        max_size=60,
    ),
    st.integers(0, 9),
)
def test_no_record_of_the_log_gets_an_exception_out_of_the_map_or_hides_the_good_claim_behind_it(
    log: list[tuple[bytes | None, bytes | None]], grown: int
) -> None:
    paths = PathMap(4)
    for key, value in log:
        paths.read(key, value, 0)
    mine = claim(paths, b"mine", 2, 7)
    paths.grow(grown)
    assert paths.get(b"mine") == 2
    for group_id in paths:
        placed = paths.get(group_id)
        assert placed is not None
        assert 0 <= placed < paths.partitions
    assert sum(paths.claimed.values()) == len([*paths])
    left = [*(key for key, _ in log if key is not None), mine]
    for partition in range(10):
        left += paths.leave(partition, 1, HOUR, lambda group_id: False)
    for key in left:
        paths.read(key, None, 0)
    assert ([*paths], paths.memory_bytes, paths.ignored_due()) == ([], 0, None)
