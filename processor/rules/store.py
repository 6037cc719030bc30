"""Where rules are kept: a database (SQLite, PostgreSQL) or a TOML file. One lookup for router, command line and sink (B-09, B-11).

A look asks for the version only, one query; what is newer is read after that (B-10). A change updates `uow_rule_head` first, so versions commit in
their order, and whoever sees a version sees all rows of it and of earlier ones. The text of the tables is `tables.sql`, for both databases.

Belongs here: reading and writing rows. Does not belong here: which version takes effect (`in_force.py`), what rows mean.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Protocol

import sqlalchemy as sa

from uow.processor.rules.changes import CannotChange, RulesUnavailable
from uow.processor.rules.columns import NAMES, TABLES, WrongRows, tables_of
from uow.processor.rules.group_keys import on_no_key
from uow.processor.rules.rule_file import MAX_BYTES, read_rules
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.schemas.error_classes import Complaint
from uow.schemas.masking import masked, masked_value
from uow.topics.columns import columns
from uow.topics.rules import OnNoKey, Rule

CONNECT_S: Final = 5
"""Longest wait for a connection, or for another one that writes."""
STATEMENT_MS: Final = 30_000
"""Longest statement that PostgreSQL works on."""
SETTLED_S: Final = 1.0
"""For so long a file must have stayed as it is before it is read."""
LONGEST_WRITE_S: Final = 10.0
"""Longest wait for that; then the next look asks again."""
_State = tuple[int, int, int]
"""Of a file: when it was changed, its size, and which file it is."""
_HEAD: Final = "uow_rule_head"
_DRIVERS: Final = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}


class RuleSource(Protocol):
    """Rules that may grow by further versions. Not for two threads at once.

    Attributes:
        has_all_versions: True if it keeps every version that it ever had.
    """

    has_all_versions: bool

    @property
    def name(self) -> str:
        """Where it is, for people; without a password."""
        ...

    def version(self) -> int:
        """The latest version; 0 if there is none. Cheap.

        Raises:
            RulesUnavailable: It cannot be read.
        """
        ...

    def read(self, known: RuleTables) -> RuleTables:
        """The rows of all versions that count.

        Args:
            known: The result of the last reading.

        Raises:
            RulesUnavailable: It cannot be read.
            WrongRows: They are no values of their tables.
        """
        ...


def rule_source(source: str) -> RuleDatabase | RuleFile:
    """The source that the setting `[rules] source` names: URL of a database, or path of a TOML file.

    Raises:
        ValueError: It is a URL of another database, or none.
    """
    return RuleDatabase(source) if "://" in source else RuleFile(Path(source))


class RuleFile:
    """A TOML file, read again when it has changed. Its version must grow with every change.

    A file that is written in place is there in part for a while. So one that changes is read once it has stayed as it is for a second; to write it
    beside its place and rename it is better still.

    Args:
        path: The file.
        settled_s: For so long it must have stayed as it is, seconds.
    """

    has_all_versions = False

    def __init__(self, path: Path, settled_s: float = SETTLED_S) -> None:
        self._path, self._settled_s = path, settled_s
        self._seen: _State = (-1, -1, -1)
        self._digest = b""
        self._tables = RuleTables()

    @property
    def name(self) -> str:
        return masked_value(str(self._path))

    def version(self) -> int:
        try:
            seen = self._settled()
            if seen != self._seen:
                self._read(seen)
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            raise RulesUnavailable(f"{self.name}: {getattr(error, 'strerror', None) or error}") from None
        return self._tables.version

    def _state(self) -> _State:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _settled(self) -> _State:
        """Its state, once that has not changed for long enough; waits for that."""
        state = self._state()
        if state == self._seen or self._settled_s <= time.time() - state[0] / 1e9:
            return state
        until = time.monotonic() + LONGEST_WRITE_S
        while time.monotonic() < until:
            before = state
            time.sleep(self._settled_s)
            state = self._state()
            if state == before:
                return state
        raise RulesUnavailable(f"{self.name}: is being written")

    def read(self, known: RuleTables) -> RuleTables:
        self.version()
        return self._tables

    def _read(self, state: _State) -> None:
        with self._path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if self._state() != state:
            raise RulesUnavailable(f"{self.name}: is being written")
        digest = hashlib.sha256(data).digest()
        if digest == self._digest:
            return
        tables = read_rules(data.decode(), state[0] // 1_000_000)
        if tables.version <= self._tables.version:
            rule = f"the file has changed, so it must grow above {self._tables.version}"
            raise WrongRows([Complaint("version", tables.version, rule)])
        self._digest, self._tables = digest, tables


class RuleDatabase:
    """The tables of a database.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`.
        on_query: Called with the text of each statement.

    Raises:
        ValueError: It is another database, or no URL.
    """

    has_all_versions = True

    def __init__(self, url: str, on_query: Callable[[str], object] | None = None) -> None:
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError:
            raise ValueError("must be sqlite:///FILE, postgresql://... or the path of a TOML file") from None
        if parsed.drivername not in _DRIVERS:
            raise ValueError(f"must be sqlite or postgresql, not {parsed.drivername}")
        self._url = parsed.set(drivername=_DRIVERS[parsed.drivername])
        self._is_sqlite = parsed.drivername == "sqlite"
        options: dict[str, Any] = (
            {"timeout": CONNECT_S}
            if self._is_sqlite
            else {"connect_timeout": CONNECT_S, "options": f"-c statement_timeout={STATEMENT_MS}"}
        )
        # a file is opened for each question, since to keep it open saves next to nothing and needs somebody who closes it
        pool: dict[str, Any] = {"poolclass": sa.NullPool} if self._is_a_file() else {"pool_size": 1, "max_overflow": 1}
        try:
            self._engine = sa.create_engine(self._url, connect_args=options, **pool)
        except ImportError:
            raise ValueError(
                "psycopg is not installed: it is in the extra 'postgresql', which `make install PART=worker VENV=...` in a checkout of uow installs"
            ) from None
        if on_query is not None:
            sa.event.listen(
                self._engine, "before_cursor_execute", lambda connection, cursor, text, *rest: on_query(text)
            )

    @property
    def name(self) -> str:
        return masked_value(self._url.render_as_string())

    def close(self) -> None:
        """Closes its connections."""
        self._engine.dispose()

    def is_made(self) -> bool:
        """True if its tables are there.

        Raises:
            RulesUnavailable: It cannot be read.
        """
        if not self._has_file():
            return False
        with self._connected() as connection:
            return sa.inspect(connection).has_table(_HEAD)

    # -- reading

    def version(self) -> int:
        with self._connected() as connection:
            return _head(connection)

    def read(self, known: RuleTables) -> RuleTables:
        with self._connected() as connection:
            return known.with_rows_of(self._rows(connection, _head(connection), known.version))

    @staticmethod
    def _rows(connection: sa.Connection, head: int, after: int = 0) -> RuleTables:
        """The rows of the versions after one, up to another."""
        span = {"after": after, "head": head}
        rows = {name: connection.execute(_newer(kind), span).mappings().all() for name, kind in TABLES.items()}
        return tables_of({name: [dict(row) for row in several] for name, several in rows.items()})

    @contextmanager
    def _connected(self, *, begin: bool = False) -> Iterator[sa.Connection]:
        if not begin and not self._has_file():
            raise RulesUnavailable(f"{self.name}: no such file")
        try:
            with self._engine.begin() if begin else self._engine.connect() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            self._engine.dispose()
            raise RulesUnavailable(f"{self.name}: {masked(' '.join(str(error.args[0]).split())[:300])}") from None

    def _is_a_file(self) -> bool:
        return self._is_sqlite and self._url.database not in (None, "", ":memory:")

    def _has_file(self) -> bool:
        """False if SQLite would make an empty one."""
        return not self._is_a_file() or Path(self._url.database or "").exists()

    # -- writing

    def create(self) -> None:
        """Makes the tables if they are not there.

        Raises:
            RulesUnavailable: It cannot be written.
        """
        with self._connected(begin=True) as connection:
            if sa.inspect(connection).has_table(_HEAD):
                return
            for statement in statements():
                connection.exec_driver_sql(statement)
            connection.execute(sa.text("INSERT INTO uow_rule_head (id, version) VALUES (1, 0)"))

    def put(self, made: RuleTables, after: int) -> None:
        """Adds one version, in one transaction.

        Args:
            made: Its rows, `changes.rows_for`.
            after: The version that it was made of.

        Raises:
            CannotChange: The rules have another version by now; nothing is written.
            RulesUnavailable: It cannot be written.
        """
        with self._connected(begin=True) as connection:
            updated = connection.execute(
                sa.text("UPDATE uow_rule_head SET version = :version WHERE id = 1 AND version = :after"),
                {"version": made.version, "after": after},
            )
            if updated.rowcount != 1:
                raise CannotChange(f"the rules are no longer at version {after}: look at them again, then repeat")
            if not _knows_by_key(connection):
                made = _said_as_before(made, RuleSet(self._rows(connection, after).with_rows_of(made)))
            for name, kind in TABLES.items():
                rows = [_plain(row) for row in getattr(made, name)]
                if rows:
                    connection.execute(sa.insert(_table(kind)), rows)


def _head(connection: sa.Connection) -> int:
    return int(connection.execute(sa.text("SELECT version FROM uow_rule_head WHERE id = 1")).scalar() or 0)


def _knows_by_key(connection: sa.Connection) -> bool:
    """False of tables that were made before `on_no_key` could be `by_key`: their check refuses it (decision 122)."""
    checks = sa.inspect(connection).get_check_constraints(NAMES[Rule])
    texts = [each["sqltext"] for each in checks if "on_no_key" in each["sqltext"]]
    return not texts or any(OnNoKey.BY_KEY in each for each in texts)


def _said_as_before(made: RuleTables, rules: RuleSet) -> RuleTables:
    """The rows of a version with what `by_key` comes to in its place."""
    said = (replace(rule, on_no_key=on_no_key(rule, rules.sources_of(rule))) for rule in made.rules)
    return replace(made, rules=tuple(said))


def _table(kind: type[Any]) -> sa.TableClause:
    return sa.table(
        NAMES[kind],
        *(sa.column(name, sa.Boolean() if column.kind is bool else None) for name, column in columns(kind).items()),
    )


def _newer(kind: type[Any]) -> sa.Select[Any]:
    table = _table(kind)
    version = table.c.version
    return sa.select(table).where(version > sa.bindparam("after"), version <= sa.bindparam("head"))


def _plain(row: Any) -> Mapping[str, Any]:
    return {name: str(value) if isinstance(value, str) else value for name, value in asdict(row).items()}


def statements() -> list[str]:
    """The statements that make the tables, one by one."""
    text = (Path(__file__).parent / "tables.sql").read_text("utf-8")
    return [each.strip() for each in re.sub(r"--.*", "", text).split(";") if each.strip()]
