"""Cost of a unit that is read and acknowledged one by one: a reader of a strict destination against one of a plain destination, by turns in one process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from uuid import uuid4

import confluent_kafka as ck

import uow
from bench.drain import BenchBroker
from bench.workloads import QUIET
from uow.config.loading import load
from uow.ops.eras import record_strictness
from uow.schemas import codec
from uow.schemas.records import ComponentRecord, Reason, Source, Unit, UnitOutcome
from uow.topics import admin
from uow.topics.catalogue import expected

SHARE = 20
"""One in so many of the usual number of records is read."""


def measure(place: BenchBroker, records: int) -> Mapping[str, float]:
    """CPU microseconds a unit of both, and their ratio."""
    count = max(50, records // SHARE)
    plain, strict = (_read(place, _filled(place, count, is_strict), count) for is_strict in (False, True))
    return {
        "cpu_us": strict[1],
        "bare_cpu_us": plain[1],
        "cpu_ratio": strict[1] / plain[1],
        "ratio": strict[0] / plain[0],
    }


def _filled(place: BenchBroker, count: int, is_strict: bool) -> str:
    """A destination of one partition, with units as a worker writes them."""
    name = place.destination(f"reads-{uuid4().hex[:8]}")
    path = place.folder / f"{name}.toml"
    path.write_text(
        f'[application]\nid = "{name}"\nbootstrap_servers = "{place.bootstrap}"\nprofile = "test"\n'
        f'[destinations."{name}"]\nhandling_policy = "single_message_delivery"\nstrict_order = {str(is_strict).lower()}\n'
    )
    settings = load(path, {})
    admin.create_missing(place.admin, expected(name, name, settings.policy(name), 1))
    record_strictness(settings, place.admin, name)
    producer = ck.Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True}, logger=QUIET)
    component = ComponentRecord(1, True, None, b"u", b"x" * 200, (), 1, Source(f"{name}.components", 0, 1))
    outcome, reason = UnitOutcome.COMPLETE, Reason.END
    for number in range(count + 1):
        unit_id = f"u{number}"
        unit = Unit(unit_id, f"unit-{unit_id}", name, 1, outcome, reason, 1, 2, None, 1, 200, (), (component,))
        producer.produce(
            f"{name}.units", codec.frame(unit), unit_id, headers=[("uow-kind", b"unit"), ("uow-id", unit_id.encode())]
        )
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("units were not written")
    return name


def _read(place: BenchBroker, name: str, count: int) -> tuple[float, float]:
    """Wall and CPU microseconds a unit."""
    with uow.connect(place.bootstrap) as connection:
        reader = connection.units(name, group=name)
        next(reader).acknowledge()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            next(reader).acknowledge()
        return (time.perf_counter() - wall) / count * 1e6, (time.process_time() - cpu) / count * 1e6
