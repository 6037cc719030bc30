"""Line 6 asks librdkafka's own murmur2 where an id belongs; it must agree with ours, and so with Java's (W-104, W-109)."""

from hypothesis import given
from hypothesis import strategies as st

from uow.processor.kafka.fast_partitioner import fastest_partition_for
from uow.topics.partitioner import partition_for

native = fastest_partition_for()


def test_the_library_offers_its_partitioner() -> None:
    assert native is not partition_for


@given(st.binary(min_size=1, max_size=255), st.integers(1, 1000))
def test_the_librarys_partition_is_ours(key: bytes, count: int) -> None:
    assert native(key, count) == partition_for(key, count)
