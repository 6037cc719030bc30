"""`python slow_restore.py [deaf] -c FILE --name NAME`: a worker whose restores take long, a quarter of a second for twenty records.

`deaf` is the control: it does not serve its group meanwhile (ER-17).
"""

from __future__ import annotations

import sys
import time
from typing import Any

from uow.processor.engine.driver import Driver
from uow.processor.kafka import log_reader as reader

RECORDS, PAUSE_S = 20, 0.25


def slowed(original: Any) -> Any:
    def strike_off(*args: Any) -> Any:
        time.sleep(PAUSE_S)
        return original(*args)

    return staticmethod(strike_off)


if __name__ == "__main__":
    reader.CHUNK = RECORDS
    reader.KafkaLogReader._strike_off = slowed(reader.KafkaLogReader._strike_off)  # type: ignore[method-assign]
    if sys.argv[1] == "deaf":
        sys.argv.pop(1)
        Driver._serve = Driver._check_stop  # type: ignore[method-assign]
    from uow.cli.worker_command import command

    command()
