"""The gate of CI: how it judges, where its reference comes from, and that it fails when the engine is made slower."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from bench import gate
from bench.gate import (
    PRODUCT,
    REFERENCE,
    ROOT,
    CannotCompare,
    Turn,
    Turns,
    export,
    hot_ratios,
    is_beyond,
    is_unclear,
    judge,
    rounds,
    slower,
    too_noisy,
)


def turns(*ratios: float) -> list[Turn]:
    """Rounds in which this tree takes so many times what the reference takes."""
    return [Turn(7.0 * ratio, 7.0) for ratio in ratios]


@pytest.mark.parametrize(
    ("ratios", "beyond"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], False),
        ([0.2, 0.3, 0.4, 0.5, 0.6], False),
        ([1.14, 1.14, 1.14, 1.14, 1.14], False),
        ([1.16, 1.16, 1.16, 1.16, 1.16], True),
        ([1.1, 1.1, 1.1, 9.0, 9.0], False),  # two wild rounds say nothing
        ([0.5, 1.2, 1.2, 1.2, 1.2], True),  # nor does one that the machine spoiled for the reference
        ([0.5, 0.9, 1.2, 5.0, 9.0], False),  # noise: each tree is the slower one now and then
        ([4.8, 5.0, 4.1, 6.0, 3.9], True),  # a p99 of 111 ms in place of 23
    ],
)
def test_figure_is_beyond_when_the_median_is_15_percent_worse_and_nearly_all_rounds_are_worse(
    ratios: Sequence[float], beyond: bool
) -> None:
    assert is_beyond(turns(*ratios)) == beyond


@pytest.mark.parametrize(
    ("ratios", "unclear"),
    [
        ([0.9, 0.95, 1.0, 1.05, 1.1, 1.3], False),
        ([0.2, 0.95, 1.0, 1.05, 1.1, 9.0], False),
        ([0.2, 0.4, 1.0, 1.1, 2.0, 9.0], True),
        ([1.0, 1.2, 1.3, 1.3, 1.4, 9.0], False),
    ],
)
def test_rounds_that_contradict_each_other_are_shown_as_unclear(ratios: Sequence[float], unclear: bool) -> None:
    assert is_unclear(turns(*ratios)) == unclear


GOOD, BAD = turns(*[1.0] * 6), turns(*[1.3] * 6)
NOISY = turns(0.5, 0.5, 0.6, 1.4, 1.5, 1.6)


@pytest.mark.parametrize(
    ("hot", "latency", "measured", "failed"),
    [
        ([GOOD], [GOOD], ["hot latency"], set()),
        ([BAD, GOOD], [GOOD], ["hot latency", "hot"], set()),
        ([BAD, BAD, GOOD], [GOOD], ["hot latency", "hot", "hot"], set()),
        ([BAD, BAD, BAD], [GOOD], ["hot latency", "hot", "hot"], {"hot"}),
        ([BAD, BAD, BAD], [BAD, GOOD], ["hot latency", "hot latency", "hot"], {"hot"}),
        ([BAD, BAD, BAD], [BAD, BAD, BAD], ["hot latency"] * 3, {"hot", "latency"}),
    ],
)
def test_a_figure_fails_that_is_beyond_three_times_in_a_row_and_only_what_is_in_doubt_is_measured_again(
    hot: list[list[Turn]], latency: list[list[Turn]], measured: list[str], failed: set[str]
) -> None:
    left = {"hot": iter(hot), "latency": iter(latency)}
    asked: list[str] = []

    def measure(parts: Collection[str]) -> Mapping[str, Turns]:
        asked.append(" ".join(parts))
        return {part: {part: next(left[part])} for part in parts}

    measurements = judge(["hot", "latency"], measure)
    assert asked == measured
    assert (slower(measurements) if len(measurements) == gate.IN_A_ROW else set()) == failed


def test_what_cannot_be_judged_is_measured_again_and_told() -> None:
    always, once = iter([NOISY] * 3), iter([NOISY, GOOD])
    measurements = judge(["hot"], lambda parts: {"hot": {"hot": next(always)}})
    assert (len(measurements), too_noisy(measurements), slower(measurements)) == (gate.IN_A_ROW, {"hot"}, set())
    assert not too_noisy(judge(["hot"], lambda parts: {"hot": {"hot": next(once)}}))


def test_a_reference_that_cannot_be_unpacked_is_told(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_git = tmp_path / "bin"
    only_git.mkdir()
    (only_git / "git").symlink_to(shutil.which("git") or "git")
    monkeypatch.setenv("PATH", str(only_git))
    with pytest.raises(CannotCompare, match="install tar"):
        export(clone, "HEAD", tmp_path / "reference")


def test_two_figures_of_a_part_that_take_turns_at_being_slow_do_not_fail() -> None:
    each = iter([{"p50": BAD, "p99": GOOD}, {"p50": GOOD, "p99": BAD}])
    assert not slower(judge(["latency"], lambda parts: {"latency": next(each)}))


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project of three commits, of which the second changed the reference."""
    root = tmp_path / "project"
    for name in (*PRODUCT, "bench", "docs"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("first\n")
    (root / "uow" / "link").symlink_to("../topics")
    git(root, "init", "-q")
    for number, name in enumerate(("docs/file", REFERENCE, "topics/file")):
        (root / name).write_text(f"{number}\n")
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", name)
    return root


def test_reference_is_the_tree_of_the_commit_that_changed_its_page_last(clone: Path, tmp_path: Path) -> None:
    commit = gate.reference_commit(clone)
    assert git(clone, "log", "-1", "--format=%s", commit).strip() == REFERENCE
    tree = gate.export(clone, commit, tmp_path / "exported")
    assert (tree / "topics" / "file").read_text() == "first\n"
    assert (tree / "uow" / "link" / "file").read_text() == "first\n", "links lead into the tree itself"


def test_only_a_difference_of_the_product_counts_and_one_that_is_not_committed_too(clone: Path) -> None:
    assert gate.differs(clone, gate.reference_commit(clone))
    (clone / "topics" / "file").write_text("first\n")
    (clone / "docs" / "file").write_text("another\n")
    assert not gate.differs(clone, gate.reference_commit(clone))


def test_a_clone_without_the_reference_is_told_what_to_do(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", clone.as_uri(), "shallow")
    with pytest.raises(CannotCompare, match="git fetch --unshallow"):
        gate.reference_commit(tmp_path / "shallow")
    git(tmp_path / "shallow", "fetch", "-q", "--unshallow")
    assert gate.reference_commit(tmp_path / "shallow") == gate.reference_commit(clone)


def test_a_folder_that_is_no_clone_and_a_clone_without_the_page_are_told(clone: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotCompare, match="needs a git clone"):
        gate.reference_commit(tmp_path)
    git(clone, "checkout", "-q", "--orphan", "other")
    git(clone, "rm", "-q", "--cached", REFERENCE)
    git(clone, "commit", "-q", "-m", "no page")
    with pytest.raises(CannotCompare, match="names the gate's reference"):
        gate.reference_commit(clone)


@pytest.mark.slow
def test_an_engine_with_far_more_work_for_each_record_fails(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    for name in (*PRODUCT, "bench"):
        shutil.copytree(ROOT / name, slow / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    task = slow / "processor" / "engine" / "task.py"
    line = "        self.take(records, commands)\n"
    assert task.read_text().count(line) == 1
    task.write_text(
        task.read_text().replace(line, f"        for _ in range(1_000 * len(records)):\n            pass\n{line}")
    )

    def measure(parts: Collection[str]) -> Mapping[str, Turns]:
        trees = (slow, ROOT)
        return {"hot": rounds(trees, 2, lambda order: {tree: hot_ratios(tree, 4_000) for tree in order})}

    measurements = judge(["hot"], measure)
    assert len(measurements) == gate.IN_A_ROW
    assert slower(measurements) == {"hot w5, to a dictionary loop", "hot w1, to a dictionary loop"}
