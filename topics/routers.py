"""Settings of rules and routers as values: the sections `[rules]` and `[routers.NAME]`. Pure.

Belongs here: those values. Does not belong here: reading files (`uow.config.loading`), the rules themselves (`uow.topics.rules`).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RulesSettings:
    """Where the rules are, and how often somebody looks.

    Attributes:
        source: URL of a database, or path of a TOML file; empty: there are no rules.
        refresh_ms: Between two looks.
        allow_defaults: With neither source nor mirror at the start, a built-in row serves (B-17).
    """

    source: str = field(default="", repr=False)
    refresh_ms: int = 10_000
    allow_defaults: bool = False


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """One router.

    Attributes:
        inputs: Topics that it reads.
        rules: Ids of the rules that it asks; empty: all.
        input_stall_ms: Time for which limits of time wait for a partition of an input that nobody routes on.
    """

    inputs: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    input_stall_ms: int = 60_000
