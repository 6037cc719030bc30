"""The set-up gives the packages of the locks on any day, with the oldest pip and the newest, and says what to do where it cannot (decision 106)."""

from __future__ import annotations

import re
import sys
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest

from tests.setup.package_index import Index, Project, fill, served, wheel
from tests.setup.wheels import ROOT
from tools.pip_runs import Pip, explain, packages_folder, watch
from tools.setup import check_python, keep_locked, make_environment

PIPS = Path(sys.prefix) / "pips"
KNOWN = {"lock": "requirements/all.lock", "tested": "3.11, 3.12", "venv": ".venv"}
LOCKED = {"asks": "1.0", "wants": "1.0", "brought": "1.0"}
WHOLE = LOCKED | {"pyspark": "1.0", "backend": "1.0", "packaging": metadata.version("packaging"), "uow": "1.0"}


@pytest.fixture
def index() -> Iterator[Index]:
    with served() as running:
        yield running


@pytest.fixture(params=["oldest", "newest"])
def pip(request: pytest.FixtureRequest) -> Path:
    """Fetched by `make setup`."""
    (found,) = (PIPS / request.param).glob("pip-*.whl")
    return found


@pytest.fixture
def newest() -> Path:
    (found,) = (PIPS / "newest").glob("pip-*.whl")
    return found


@pytest.fixture
def project(tmp_path: Path, index: Index, pip: Path) -> Project:
    """With each pip."""
    return Project(tmp_path / "project", index, pip)


@pytest.fixture
def small(tmp_path: Path, index: Index, newest: Path) -> Project:
    """With the newest pip only."""
    return Project(tmp_path / "project", index, newest)


def test_newer_releases_change_nothing(project: Project, index: Index) -> None:
    """Some pips look for the newest release of what another package requires with an extra, which has no hash in the lock."""
    fill(index, "2.0")
    done = project.set_up()
    assert done.returncode == 0, done.stdout
    assert project.installed() == WHOLE
    assert done.stdout.endswith("setup: ready\n")


def test_the_set_of_this_checkout_is_the_same_with_a_newer_release_of_each_package(project: Project) -> None:
    versions = project.take_real_set()
    assert len(versions) > 80
    done = project.set_up()
    assert done.returncode == 0, done.stdout
    installed = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in project.installed().items()}
    assert versions.items() <= installed.items()
    assert "9999" not in installed.values()


def test_a_second_run_asks_nobody(small: Project, index: Index) -> None:
    assert small.set_up().returncode == 0
    index.asked.clear()
    again = small.set_up(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert (again.returncode, again.stdout, index.asked) == (0, "", [])


def test_settings_of_a_user_change_nothing_but_the_index(project: Project, index: Index, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("wants==2.0\n")
    settings = tmp_path / "pip.conf"
    settings.write_text(
        f"[global]\nindex-url = {index.url}\nquiet = 1\nrequire-virtualenv = true\n"
        f"[install]\nconstraint = {constraints}\nprefix = {elsewhere}\nno-binary = :all:\n"
    )
    theirs = {"PIP_TARGET": str(elsewhere), "PIP_DRY_RUN": "1", "PIP_REQUIREMENT": str(constraints), "PIP_PRE": "1"}
    done = project.set_up(PIP_CONFIG_FILE=str(settings), PIP_INDEX_URL=index.url, PIP_USER="1", **theirs)
    assert done.returncode == 0, done.stdout
    assert project.installed() == WHOLE
    assert not elsewhere.exists()


def test_an_index_in_a_file_of_settings_is_used(small: Project, index: Index, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nquiet = 2\nindex-url = {index.url}\n")
    small_settings = {"PIP_CONFIG_FILE": str(settings), "PIP_EXTRA_INDEX_URL": ""}
    done = small.set_up(**small_settings, PIP_INDEX_URL="")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("lock", "name", "by"),
    [
        ("all.lock", "wants", "asks 1.0"),
        ("all.lock", "brought", "wants 1.0"),  # by an extra only, at which `pip check` does not look
        ("all.lock", "asks", "uow 1.0"),
        ("all.lock", "pyspark", "uow 1.0"),  # by an extra of the project
    ],
)
def test_a_lock_that_lacks_a_package_is_an_error(small: Project, lock: str, name: str, by: str) -> None:
    small.leave_out(lock, name)
    done = small.set_up()
    assert done.returncode != 0
    assert f"{lock} lacks {name}, which {by} needs" in done.stdout
    assert "fault of the lock" in done.stdout
    assert small.set_up().returncode != 0, "an incomplete set is not taken for a complete one later"


def test_a_lock_whose_version_another_package_refuses_is_an_error(small: Project, index: Index) -> None:
    index.add("asks", "1.0", wheel("asks", "1.0", ["wants[extra]>=3"]))
    path = small.locks / "all.lock"
    path.write_text(index.lock("asks==1.0", "wants==1.0", "brought==1.0", "pyspark==1.0"))
    done = small.set_up()
    assert done.returncode != 0
    assert "has wants 1.0, and asks 1.0 needs >=3" in done.stdout


def test_a_part_is_installed_without_build_tools(project: Project, index: Index, pip: Path) -> None:
    fill(index, "2.0")
    there = project.folder / "there"
    project.give_pip(there, pip)
    done = project.set_up("client", VENV=str(there))
    assert done.returncode == 0, done.stdout
    assert project.installed(there) == LOCKED | {"uow": "1.0"}
    assert not [path for path in there.iterdir() if path.name.startswith(".build-")]


def test_a_part_is_made_with_the_pip_that_comes_with_this_python(small: Project) -> None:
    there = small.folder / "there"
    done = small.set_up("client", VENV=str(there))
    assert done.returncode == 0, done.stdout
    assert small.installed(there).keys() >= LOCKED.keys()


def test_a_second_part_in_one_environment_takes_nothing_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice on missing packages names the environment in which it is given. Locks may write a name in another way."""
    monkeypatch.setattr("tools.setup.ROOT", tmp_path)
    removed: list[str] = []

    def pip(*arguments: Any) -> None:
        removed.extend(arguments[2:])

    def install(part: str, text: str) -> None:
        (tmp_path / "lock").write_text(text)
        keep_locked(cast("Pip", pip), tmp_path, part, "lock")

    install("worker", "asks==1.0 \\\n --hash=sha256:1\nOf.Worker==1.0\nOf_Both==1.0\n")
    install("sink", "asks==1.0\nof-both[extra]==2.0\nof-sink==1.0\n")
    assert removed == []
    install("worker", "asks==1.0\n")
    assert removed == ["of-worker"]
    install("sink", "asks==1.0\n")
    assert removed == ["of-worker", "of-both", "of-sink"]


@pytest.mark.parametrize(("part", "lock"), [([], "all.lock"), (["client"], "client.lock")])
def test_what_an_earlier_lock_brought_is_removed_and_nothing_else(
    small: Project, index: Index, part: list[str], lock: str
) -> None:
    there = small.folder / ("there" if part else ".venv")
    index.add("gone", "1.0", wheel("gone", "1.0"))
    now = (small.locks / lock).read_text()
    (small.locks / lock).write_text(now + index.lock("gone==1.0"))
    assert small.set_up(*part, VENV=str(there)).returncode == 0
    assert "gone" in small.installed(there)
    theirs = packages_folder(there) / "theirs-1.0.dist-info"
    theirs.mkdir()
    (theirs / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (small.locks / lock).write_text(now)
    done = small.set_up(*part, VENV=str(there))
    assert done.returncode == 0, done.stdout
    assert {"gone", "theirs"} & small.installed(there).keys() == {"theirs"}


@pytest.mark.parametrize(
    ("part", "folder", "told"),
    [
        (["client"], ".venv", "VENV names the folder"),
        (["broker"], "there", "client|worker|sink|all"),
        (["client"], "uow", "has other things in it"),
    ],
)
def test_a_part_needs_a_name_and_a_folder_of_its_own(small: Project, part: list[str], folder: str, told: str) -> None:
    done = small.set_up(*part, VENV=folder)
    assert done.returncode != 0
    assert told in done.stdout
    assert (small.folder / "uow" / "jvm").exists()


# ------------------------------------------------------------------------------------------------ failures, with real output of pip


def last(output: str) -> str:
    return output.splitlines()[-1]


def test_an_index_that_does_not_answer_is_told(project: Project) -> None:
    done = project.set_up(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert "the package index could not be reached" in last(done.stdout)
    assert "run the same command again" in last(done.stdout)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("/simple/", "lacks the file or is out of order"),  # pip passes over a page that answers 503, and says nothing
        ("/files/", "the package index could not be reached"),
    ],
)
def test_an_index_that_is_out_of_order_is_told(project: Project, index: Index, what: str, told: str) -> None:
    index.refused, index.status = what, 503
    done = project.set_up()
    assert told in last(done.stdout), done.stdout


def test_a_file_that_was_replaced_is_told(project: Project, index: Index) -> None:
    index.add("wants", "1.0", wheel("wants", "1.0", module="stranger = True"))
    done = project.set_up()
    assert last(done.stdout).startswith(
        "setup: wants: the file that the index handed out is not the one of requirements/all.lock"
    )
    assert "Running it again does not help" in last(done.stdout)
    assert "wants" not in project.installed()


def test_a_release_that_the_index_lacks_is_told(project: Project, index: Index) -> None:
    index.files["wants"].clear()
    index.add("wants", "2.0", wheel("wants", "2.0"))
    done = project.set_up()
    assert "the index has no file of wants 1.0 for Python 3." in last(done.stdout)
    assert "Tested are Python 3." in last(done.stdout)
    assert "again" not in last(done.stdout)


def test_a_package_that_the_index_refuses_to_give_is_told(project: Project, index: Index) -> None:
    index.refused, index.status = "/files/", 403
    done = project.set_up()
    assert "the index refuses access" in last(done.stdout), done.stdout
    assert "again" not in last(done.stdout)


def test_a_source_that_cannot_be_built_is_told(project: Project) -> None:
    (project.folder / "name").unlink()
    done = project.set_up()
    assert last(done.stdout).startswith("setup: a package could not be built")
    assert "FileNotFoundError" in done.stdout


def test_a_python_without_ensurepip_is_told(small: Project, tmp_path: Path) -> None:
    """As Debian has it without `python3.11-venv`."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'ensurepip' else find(name, *more)\n"
    )
    done = small.set_up("client", VENV="there", PYTHONPATH=str(hidden))
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"`apt install python{minor}-venv`" in last(done.stdout)
    assert not (small.folder / "there").exists()


@pytest.mark.parametrize(
    ("output", "status", "told"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            1,
            "the disk is full",
        ),
        ("OSError: [Errno 122] Disk quota exceeded\n", 1, "the disk is full"),
        (
            (
                "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken by "
                "'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate "
                "(_ssl.c:1006)'))': /simple/asks/\nERROR: No matching distribution found for asks==1.0\n"
            ),
            1,
            "PIP_CERT",
        ),
        (
            (
                "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by "
                "'ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407 Proxy Authentication Required'))': /simple/asks/\n"
            ),
            1,
            "the proxy refuses",
        ),
        (
            (
                "Collecting pyspark==1.0\nERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='files.example', port=443): "
                'Max retries exceeded with url: /pyspark-1.0.tar.gz (Caused by ReadTimeoutError("Read timed out. (read timeout=15)"))\n'
            ),
            1,
            "could not be reached",
        ),
        (
            (
                "Traceback (most recent call last):\npip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='files.example', port=443): "
                "Read timed out.\n"
            ),
            2,
            "could not be reached",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/opt/uow/lib'\n",
            1,
            "there: /opt/uow/lib",
        ),
        ("Collecting asks==1.0\n", -9, "signal 9"),
        ("ERROR: something new\n", 1, "its output above says why"),
        (
            # asks came after a retry, wants is missing: not the network's fault
            (
                "WARNING: Retrying (Retry(total=0)) after connection broken by 'ReadTimeoutError()': /simple/asks/\nCollecting asks==1.0\n"
                "ERROR: Could not find a version that satisfies the requirement wants==1.0 (from versions: none)\n"
            ),
            1,
            "no file of wants 1.0",
        ),
    ],
)
def test_the_cause_is_found_in_what_pip_prints(output: str, status: int, told: str) -> None:
    assert told in explain("\n" + output, status, **KNOWN)


# ------------------------------------------------------------------------------------------------ every command line


def command_lines() -> list[tuple[str, str]]:
    """Each line, put together where it is continued, of files and pages that tell how to install."""
    pages = [ROOT / "Dockerfile", ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts]
    pages += [*(ROOT / "examples").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    found = [(path.name, line) for path in pages for line in re.sub(r"\\\n\s*", " ", path.read_text()).splitlines()]
    return [(name, part) for name, line in found for part in re.split(r"&&|;|`", line)]


def test_whatever_installs_a_lock_or_the_project_resolves_nothing() -> None:
    installs = re.compile(r"\bpip\b.* (install|wheel|download) .*?(-r \S+\.lock|\s'?\.(\s|\[|'|$)|\.whl)")
    found = [(name, line) for name, line in command_lines() if installs.search(line)]
    assert [name for name, _ in found].count("Dockerfile") >= 4
    assert [(name, line) for name, line in found if "--no-deps" not in line] == []


def test_the_set_up_runs_pip_in_no_other_way() -> None:
    calls = re.findall(
        r"\b(?:pip|build)\(\n?\s*\"(?:install|wheel|download)\".*", (ROOT / "tools" / "setup.py").read_text()
    )
    assert len(calls) >= 6
    assert [call for call in calls if "*LOCKED" not in call and '"--no-deps"' not in call] == []


def test_an_environment_of_somebody_else_that_has_no_pip_loses_nothing(tmp_path: Path) -> None:
    """`uv venv` makes such ones; the advice of a missing extra names the environment of the application."""
    folder = tmp_path / "theirs"
    venv.EnvBuilder(with_pip=False).create(folder)
    theirs = packages_folder(folder) / "their_module.py"
    theirs.write_text("")
    make_environment(folder)
    assert theirs.exists()
    assert any(packages_folder(folder).glob("pip-*.dist-info"))


@pytest.mark.parametrize("name", ["version", "version_info"])  # as venv writes it, and as uv
def test_an_environment_of_another_python_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "pyvenv.cfg").write_text(f"home = /usr/bin\n{name} = 3.9.2\n")
    with pytest.raises(SystemExit, match=r"has Python 3\.9, this is"):
        check_python(tmp_path)


def test_output_that_is_no_utf8_is_read_to_its_end() -> None:
    lines: list[str] = []
    program = [sys.executable, "-c", "import os; os.write(1, b'caf\\xe9\\n' * 50_000)"]
    assert watch(program, lambda: "", lines.append) == 0
    assert len(lines) == 50_000
