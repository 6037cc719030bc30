"""Test kit for your own rules: a scenario in lines, played in milliseconds on the code that workers run (aggregation, B-215).

    from uow.testing import play

    play(Path("rules.toml").read_text(), '''
        at 0s    send UK x3
        at 14s   expect nothing
        at 15s   expect partial 3 by age on orders.uk
    ''')

No broker, no database, no waiting: the clock is virtual. `play` raises `ScenarioError`, with the number of the line, where something else came out.

Belongs here: what users import. Does not belong here: playing (`uow.testing.scenario`).
"""

from __future__ import annotations

from uow.processor.engine.ports import Output
from uow.testing.scenario import Played, ScenarioError, play

__all__ = ["Output", "Played", "ScenarioError", "play"]
