"""The locked jars: where they are, and how they get there.

A line of `jars.lock`: `<set> <group>:<artifact>:<version> <size> <sha256>`. A class path is made from the lock, not
from the files in the folder. A downloaded jar gets its name only after its sha256 was checked; jars that are no longer in
the lock are deleted. The lock itself is written by `tools/lock_jars.py`.

    python -m uow.jvm.jars [--quick] [--into FOLDER] [set ...]

Without a set it fetches all but those that few need (`ON_REQUEST`).

Settings of the environment: `UOW_JARS` (the folder; default `.jars` in a checkout, else `jars` in the Python environment, where `make install` puts
them, else the user's cache folder) and `UOW_MAVEN_REPOSITORY` (a mirror; default: the one the `jgo` package names).
"""

import argparse
import errno
import hashlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from uow.extras import advice

__all__ = ["ChecksumMismatch", "Jar", "JarsMissing", "class_path", "ensure", "folder", "locked", "version"]

HERE = Path(__file__).resolve().parent
LOCK = HERE / "jars.lock"
ATTEMPTS = 4
ON_REQUEST = frozenset({"s3"})
"""Sets that are fetched only by name: most runs do without them."""
_CHECKOUT = HERE.parents[1]
_IS_CHECKOUT = (_CHECKOUT / "Makefile").is_file()
_REMEDY = "Run `make setup`." if _IS_CHECKOUT else "Run `python -m uow.jvm.jars`, which fetches them."


class JarsMissing(RuntimeError):
    """Jars of the lock are not in the folder; the message names the command that downloads them."""

    def __init__(self, names: list[str], into: Path, remedy: str = _REMEDY) -> None:
        self.names, self.into = names, into
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        super().__init__(f"not in {into}: {some}. {remedy}")


class ChecksumMismatch(RuntimeError):
    """A downloaded jar differs from the locked one."""

    def __init__(self, coordinate: str, seen: str, expected: str) -> None:
        self.coordinate, self.seen, self.expected = coordinate, seen, expected
        super().__init__(f"{coordinate}: sha256 is {seen}, jars.lock says {expected}")


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock."""

    set: str
    coordinate: str
    size: int
    sha256: str

    @property
    def artifact(self) -> str:
        """The middle part of the coordinate, `kafka-clients`."""
        return self.coordinate.split(":")[1]

    @property
    def version(self) -> str:
        """The last part of the coordinate, `4.3.1`."""
        return self.coordinate.split(":")[2]

    @property
    def name(self) -> str:
        """The path below the jar folder, `broker/kafka-clients-4.3.1.jar`."""
        return f"{self.set}/{self.artifact}-{self.version}.jar"

    @property
    def url_path(self) -> str:
        """The path below a Maven repository's URL."""
        group = self.coordinate.split(":")[0].replace(".", "/")
        return f"{group}/{self.artifact}/{self.version}/{self.artifact}-{self.version}.jar"

    def looks_right(self, into: Path) -> bool:
        """True if the file exists and has the locked size; the quick check."""
        path = into / self.name
        return path.is_file() and path.stat().st_size == self.size

    def is_right(self, into: Path) -> bool:
        """True if the file exists and has the locked sha256."""
        if not self.looks_right(into):
            return False
        with (into / self.name).open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest() == self.sha256


def locked(sets: Iterable[str] = (), lock: Path = LOCK) -> list[Jar]:
    """The jars of the lock, of some sets (`broker`, `spark`, `tools`, `s3`) or of all but `ON_REQUEST`, in the order of the lock."""
    rows = (line.split() for line in lock.read_text().splitlines() if line and not line.startswith("#"))
    jars = [Jar(kind, coordinate, int(size), sha256) for kind, coordinate, size, sha256 in rows]
    wanted = set(sets)
    unknown = wanted - {jar.set for jar in jars}
    if unknown:
        raise ValueError(f"no such set in {lock.name}: {', '.join(sorted(unknown))}")
    return [jar for jar in jars if (jar.set in wanted if wanted else jar.set not in ON_REQUEST)]


def folder() -> Path:
    """The folder of the jars: `UOW_JARS`, else `.jars` of the checkout, else that of the Python environment, else the user's cache folder."""
    given = os.environ.get("UOW_JARS")
    if given:
        return Path(given).expanduser().resolve()
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT / ".jars"
    installed = Path(sys.prefix) / "jars"
    if installed.is_dir():
        return installed
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "uow" / "jars"


def class_path(kind: str, into: Path | None = None) -> list[Path]:
    """Paths of one set's jars, absolute and in the order of the lock.

    Raises:
        JarsMissing: at least one is absent or has not the locked size.
    """
    into = into or folder()
    jars = locked([kind])
    missing = [jar.name for jar in jars if not jar.looks_right(into)]
    if missing:
        own = f"Run `python -m uow.jvm.jars {kind}`, which fetches them."
        raise JarsMissing(missing, into, own if kind in ON_REQUEST else _REMEDY)
    return [into / jar.name for jar in jars]


def version(kind: str, artifact: str) -> str:
    """The locked version of an artifact, `version("broker", "kafka_2.13") == "4.3.1"`."""
    return next(jar.version for jar in locked([kind]) if jar.artifact == artifact)


def ensure(into: Path | None = None, sets: Iterable[str] = (), *, lock: Path = LOCK, quick: bool = False) -> list[Jar]:
    """Make the folder match the lock: download missing or altered jars, delete jars that are no longer in the lock.

    Args:
        into: the folder; default `folder()`.
        sets: some sets only; default all.
        lock: another lock file.
        quick: trust a jar of the right size that was verified before.

    Returns:
        The jars that had to be fetched.

    Raises:
        ChecksumMismatch: the repository served something else.
        requests.RequestException: the repository could not be reached.
    """
    into = into or folder()
    into.mkdir(parents=True, exist_ok=True)
    jars = locked(sets, lock)
    state = hashlib.sha256(lock.read_bytes()).hexdigest()
    verified = into / ".verified"
    with _alone(into):
        trusted = quick and verified.is_file() and verified.read_text() == state
        missing = [jar for jar in jars if not (jar.looks_right(into) if trusted else jar.is_right(into))]
        if missing:
            verified.unlink(missing_ok=True)
            _fetch_all(missing, into)
        for kind in {jar.set for jar in jars}:
            _delete_strangers(into, kind, lock)
        if not sets:
            verified.write_text(state)
    return missing


@contextmanager
def _alone(into: Path) -> Iterator[None]:
    """Allows one download per folder at a time; a second process waits, and then finds everything there."""
    try:
        import fcntl
    except ImportError:  # Windows: parts have the process id in their name and are renamed when complete
        yield
        return
    with (into / ".lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _delete_strangers(into: Path, kind: str, lock: Path) -> None:
    """Delete jars that are not in the lock, and partial files of a killed download."""
    names = {jar.name for jar in locked([kind], lock)}
    for path in (into / kind).iterdir():
        if f"{kind}/{path.name}" not in names and path.suffix in {".jar", ".part"}:
            path.unlink()


def _repository() -> str:
    url = os.environ.get("UOW_MAVEN_REPOSITORY")
    if not url:
        from jgo.constants import MAVEN_CENTRAL_URL

        url = str(MAVEN_CENTRAL_URL)
    return url.rstrip("/")


def _fetch(base: str, jar: Jar, into: Path) -> None:
    """Download one jar and give it its name. Connection errors are retried, a wrong sha256 is not."""
    import requests

    target = into / jar.name
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    for attempt in range(1, ATTEMPTS + 1):
        seen = hashlib.sha256()
        try:
            with (
                requests.get(f"{base}/{jar.url_path}", stream=True, timeout=(10, 60)) as answer,
                part.open("wb") as out,
            ):
                answer.raise_for_status()
                for chunk in answer.iter_content(1 << 16):
                    seen.update(chunk)
                    out.write(chunk)
            if seen.hexdigest() != jar.sha256:
                raise ChecksumMismatch(jar.coordinate, seen.hexdigest(), jar.sha256)
            part.replace(target)
            return
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if attempt == ATTEMPTS:
                raise
            time.sleep(2**attempt / 2)
        finally:
            part.unlink(missing_ok=True)


def _fetch_all(jars: list[Jar], into: Path) -> None:
    """Download in parallel, with a line of progress. The first failure ends it; complete jars are kept."""
    base, total, done = _repository(), sum(jar.size for jar in jars), 0
    for kind in {jar.set for jar in jars}:
        (into / kind).mkdir(parents=True, exist_ok=True)
    terminal = sys.stderr.isatty()
    with ThreadPoolExecutor(6) as pool:
        jobs = {pool.submit(_fetch, base, jar, into): jar for jar in jars}
        for n, job in enumerate(as_completed(jobs), 1):
            try:
                job.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            done += jobs[job].size
            if terminal or n % 15 == 0 or n == len(jobs):
                line = f"jars: {n}/{len(jobs)}, {done / 1e6:.0f} of {total / 1e6:.0f} MB"
                print(line, end="\r" if terminal and n < len(jobs) else "\n", file=sys.stderr, flush=True)


def _advice(error: Exception) -> str:
    """The remedy for a failed download."""
    import requests

    mirror = "if you use a mirror, set UOW_MAVEN_REPOSITORY to its URL"
    if isinstance(error, ChecksumMismatch):
        return f"the repository hands out another file than the lock names; running again does not help while that is so: {mirror}."
    if isinstance(error, requests.exceptions.SSLError):
        return "the certificate of the repository is not trusted here: name the file of your certificate authorities in REQUESTS_CA_BUNDLE."
    if isinstance(error, requests.HTTPError):
        return f"the repository refuses or lacks this file: {mirror}."
    if isinstance(error, requests.RequestException):
        return f"look at the network, or {mirror}. Then run again to continue: complete jars are kept."
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full: free some space, then run again to continue: complete jars are kept."
    return "running again does not help before this is mended."


def main(arguments: list[str] | None = None) -> int:
    """Command line: fetch and verify."""
    parser = argparse.ArgumentParser(prog="python -m uow.jvm.jars", description="Fetch and verify the locked jars.")
    parser.add_argument(
        "--into",
        type=Path,
        help="folder (default: UOW_JARS, .jars of the checkout, jars of the environment, or the cache)",
    )
    parser.add_argument("--quick", action="store_true", help="do not hash jars again that were verified before")
    parser.add_argument("sets", nargs="*", help="broker, spark, tools, s3 (default: all but s3)")
    given = parser.parse_args(arguments)
    into = given.into or folder()
    try:
        fetched = ensure(into, given.sets, quick=given.quick)
    except ModuleNotFoundError as error:
        print(f"jars: {advice('java')} ({error.name} was looked for)", file=sys.stderr)
        return 1
    except (OSError, ValueError, ChecksumMismatch) as error:  # requests' errors are OSErrors
        print(f"jars: {error}\njars: {_advice(error)}", file=sys.stderr)
        return 1
    if fetched or not given.quick:
        print(f"jars: {len(locked(given.sets))} in {into}, {len(fetched)} fetched")
    return 0


if __name__ == "__main__":
    sys.exit(main())
