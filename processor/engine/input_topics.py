"""The two topics that a destination is read from, partition by partition: `D.components` and `D.commands`.

Belongs here: which partition of one topic goes with which of the other. Does not belong here: positions that move, and reading
(`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from uow.processor.engine.ports import Tp


class HasPositions(Protocol):
    """A task, as far as its positions are concerned."""

    @property
    def position(self) -> int: ...
    @property
    def command_position(self) -> int: ...


class InputTopics:
    """Pairs of topics. Partition n of `D.commands` is always read by the owner of partition n of `D.components`.

    Args:
        commands_of: `D.commands` of each destination, by its `D.components`.
    """

    def __init__(self, commands_of: Mapping[str, str]) -> None:
        self._commands_of = dict(commands_of)
        self._components_of = {commands: components for components, commands in commands_of.items()}

    @property
    def components(self) -> list[str]:
        """`D.components` of every destination: the topics that the consumer group shares out."""
        return list(self._commands_of)

    def commands_tp(self, tp: Tp) -> Tp:
        """The partition of `D.commands` that goes with one of `D.components`."""
        return Tp(self._commands_of[tp.topic], tp.partition)

    def components_tp(self, tp: Tp) -> Tp:
        """The partition of `D.components` that goes with one of `D.commands`; one of `D.components` itself is returned as it is."""
        return Tp(self._components_of.get(tp.topic, tp.topic), tp.partition)

    def both(self, tps: Iterable[Tp]) -> list[Tp]:
        """These partitions of `D.components`, each followed by its partition of `D.commands`."""
        return [each for tp in tps for each in (tp, self.commands_tp(tp))]

    def positions(self, tasks: Mapping[Tp, HasPositions]) -> dict[Tp, int]:
        """The next offset to read, in both topics of each task; `D.components` first."""
        return {
            each: position
            for tp, task in tasks.items()
            for each, position in ((tp, task.position), (self.commands_tp(tp), task.command_position))
        }
