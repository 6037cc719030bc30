"""What other systems send, as `docs/wire-format.md` shows it, through a whole worker (W-17)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.foreign_records import Sample, samples
from tests.shell.memory_kafka import MemoryKafka, MemoryLogReader
from tests.shell.whole_worker import UNITS, running, settings, until
from uow.ops import doctor
from uow.ops.findings import CheckResult
from uow.schemas import codec
from uow.schemas.records import Unit
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import ALIASES
from uow.topics.policies import AliasFamily


def counts(each: int) -> Mapping[str, int]:
    """As many partitions of whichever topic."""
    return defaultdict(lambda: each)


def test_the_page_shows_a_unit_of_each_family() -> None:
    shown = {family for sample in samples() for family in sample.families}
    assert shown == set(AliasFamily)
    assert all(len(sample.parts) > 1 for sample in samples())


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name[:60])
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "last one first"])
def test_a_unit_of_another_system_is_delivered_whole_and_what_is_in_no_group_passes_w17(
    sample: Sample, turned: bool
) -> None:
    async def test() -> None:
        kafka, policy = MemoryKafka(), replace(UNITS, accept_aliases=sample.families)
        for at, (headers, value) in enumerate(reversed(sample.records) if turned else sample.records):
            kafka.append("D.components", b"key %d" % at, value, list(headers))
        async with running(kafka, settings(policy=policy)):
            await until(lambda: len(kafka.topic("D.units")) + len(kafka.topic("D.rejected")) > len(sample.others))
        assert not [dict(record.headers() or [])["uow-error-text"] for record in kafka.topic("D.rejected")]
        units, passed = [], []
        for record in kafka.topic("D.units"):
            is_unit = ("uow-kind", b"unit") in (record.headers() or [])
            (units if is_unit else passed).append(record.value() or b"")
        (unit,) = [codec.decode_as(Unit, value) for value in units]
        assert [part.value for part in unit.components] == sample.parts
        assert [part.seq for part in unit.components] == list(range(1, len(sample.parts) + 1))
        assert (unit.outcome.value, sorted(passed)) == ("complete", sorted(sample.others))

    asyncio.run(test())


def test_a_unit_of_nifi_that_counts_otherwise_is_never_called_complete_w17() -> None:
    async def test() -> None:
        for family, other in ((AliasFamily.NIFI, AliasFamily.NIFI_FROM_1), (AliasFamily.NIFI_FROM_1, AliasFamily.NIFI)):
            (sample,) = [each for each in samples() if each.families == {family}]
            kafka, policy = MemoryKafka(), replace(UNITS, accept_aliases=frozenset({other}))
            for headers, value in sample.records:
                kafka.append("D.components", b"key", value, list(headers))
            async with running(kafka, settings(policy=policy)):
                await until(lambda kafka=kafka: kafka.topic("D.rejected"))
            assert kafka.topic("D.units") == []
            (text,) = [dict(record.headers() or [])["uow-error-text"] or b"" for record in kafka.topic("D.rejected")]
            assert f'accept_aliases = ["{family}"]'.encode() in text

    assert ALIASES[AliasFamily.NIFI] == ALIASES[AliasFamily.NIFI_FROM_1]
    asyncio.run(test())


@pytest.mark.parametrize("sample", [each for each in samples() if AliasFamily.SPRING not in each.families])
def test_doctor_says_what_records_of_another_system_probably_are_w17(sample: Sample) -> None:
    async def test() -> None:
        kafka = MemoryKafka()
        for headers, value in sample.records:
            kafka.append("D.components", b"key", value, list(headers))
        async with running(kafka):
            await until(lambda: len(kafka.topic("D.units")) + len(kafka.topic("D.rejected")) == len(sample.records))
        found = [*doctor.misread(MemoryLogReader(kafka), DestinationTopics("A", "D"), (), counts(kafka.partitions))]
        assert {one.verdict for one in found} == {CheckResult.LOOK}
        wanted = f'accept_aliases = ["{min(sample.families)}"]'
        sure = [one.remedy for one in found if "if it counts from 0" not in one.what]
        assert {wanted} == set(sure or [one.remedy for one in found])
        assert [*doctor.misread(MemoryLogReader(kafka), DestinationTopics("A", "D"), sample.families, counts(2))] == []

    asyncio.run(test())
