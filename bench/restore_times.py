"""Restore of held components by the engine's own code, in a fresh process: `python -m bench.restore_times BOOTSTRAP APPLICATION DESTINATION`."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Sequence

from bench.drain import POLICY, BenchBroker
from bench.programs import Program
from bench.workloads import PARTITIONS, WORKLOADS, produce
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Tp
from uow.processor.engine.restore import restore
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.framing import single_object_header
from uow.topics.catalogue import DestinationTopics


def main(bootstrap: str, application: str, destination: str) -> None:
    """Prints what it took."""
    topics = DestinationTopics(application, destination)
    unit, outcome = single_object_header("Unit"), single_object_header("Outcome")
    context = TaskContext(destination, topics, POLICY, PARTITIONS, unit, outcome)
    reader = KafkaLogReader(Clients(WorkerSettings(application, bootstrap, "restore")))
    tps = [Tp(topics.components, number) for number in range(PARTITIONS)]
    rows = sum(
        end - start
        for start, end in reader.bounds([Tp(topics.groups_changelog, number) for number in range(PARTITIONS)]).values()
    )
    gc.collect()  # as in a worker, which is frozen before it restores
    gc.freeze()
    gc.disable()
    idle_bytes, wall, cpu = peak_bytes(), time.perf_counter(), time.process_time()
    tasks = restore(reader, {topics.components: context}, tps)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    reader.close()
    held = sum(len(group.held) for task in tasks.values() for group in task.groups.values())
    estimate = sum(task.memory_bytes for task in tasks.values())
    took = {"seconds": wall, "cpu_us": cpu / max(1, held) * 1e6}
    memory = {"estimate_mb": estimate / 1e6, "peak_mb": (peak_bytes() - idle_bytes) / 1e6}
    print(json.dumps({"held": held, "rows": rows, **took, **memory}), flush=True)


def peak_bytes() -> int:
    """Most resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Restores:
    """Three destinations with the same held components. `changelog`: it holds nothing else. `uncompacted`: it holds every row ever written.
    `input`: the worker was killed, so that the groups are replayable: their components are read from the input again.

    Args:
        place: The broker.
        records: Components to hold.
        cases: Which of them.
    """

    CASES = ("changelog", "uncompacted", "input")

    def __init__(self, place: BenchBroker, records: int, cases: Sequence[str] = CASES) -> None:
        self._place = place
        self._applications: dict[str, str] = {}
        held = WORKLOADS["held"].of(records)
        for case in cases:
            application = self._applications[case] = place.application()
            topics = place.create(application, place.destination(case))
            if case == "uncompacted":
                produce(place.bootstrap, topics.components, WORKLOADS["w5"].of(2 * records))
            produce(place.bootstrap, topics.components, held)
            place.run_through(application, place.destination(case), kill=case == "input")

    def measure(self, case: str) -> dict[str, float]:
        """One restore."""
        application = self._applications[case]
        command = [
            sys.executable,
            "-m",
            "bench.restore_times",
            self._place.bootstrap,
            application,
            self._place.destination(case),
        ]
        with Program(self._place.folder / f"{self._place.application()}.log", *command) as program:
            done = json.loads(program.wait_end(120))
        return {**done, "per_s": done["held"] / done["seconds"], "rows_per_s": done["rows"] / done["seconds"]}


if __name__ == "__main__":
    main(*sys.argv[1:])
