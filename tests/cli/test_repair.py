"""`uow cancel` and the like: which groups are meant, and under which ids the commands go out (W-76, W-203)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.fake_record import FakeRecord
from tests.signed_commands import ForeignSigner
from uow.cli import repair_command as repair
from uow.cli.main import main
from uow.config.loading import load
from uow.ops import group_commands
from uow.ops.group_commands import CommandClient, Reply, UnansweredError
from uow.processor.engine.ports import Tp
from uow.schemas import codec
from uow.schemas.records import Answer, Range
from uow.topics.commands import Command, Verb

CONFIGURATION = '[application]\nid = "A"\n[destinations.D]\nhandling_policy = "single_message_delivery"\n'
NOW = 1_000_000
AGES_S = {"order-1": 900, "order-2": 600, "order-3": 1, "parcel-1": 600}


class AnsweringWorker:
    """Answers every command; notes them."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.is_silent = False
        self.obeying: set[int] = {1}

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Reply]:
        self.commands += commands
        if self.is_silent:
            raise UnansweredError(commands, "D", timeout_s)
        for each in commands:
            said = each.id.decode(), each.verb, each.group_id.decode(), "D", True, "it did", each.why, each.by, 0
            yield Reply(Answer(*said), is_verified=False)

    def ask_everywhere(self, command: Command, timeout_s: float) -> Iterator[tuple[int, Reply]]:
        for partition, reply in enumerate(self.ask([command, command], timeout_s)):
            yield partition, reply._replace(answer=replace(reply.answer, done=partition in self.obeying))

    @property
    def ids(self) -> dict[str, str]:
        """Group id to command id."""
        return {each.group_id.decode(): each.id.decode() for each in self.commands}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> AnsweringWorker:
    one = AnsweringWorker()
    groups = [SimpleNamespace(id=name, generation=1, opened_at=NOW - age * 1000) for name, age in AGES_S.items()]
    monkeypatch.setattr(repair, "command_client", lambda *_: nullcontext(one))
    monkeypatch.setattr(repair, "log_reader", lambda _: nullcontext())
    monkeypatch.setattr(repair, "task_context", lambda *_: None)
    monkeypatch.setattr(repair, "open_groups", lambda *_: groups)
    monkeypatch.setattr(repair, "wall_clock_ms", lambda: NOW)
    return one


@pytest.fixture
def uow(tmp_path: Path, worker: AnsweringWorker) -> Callable[..., Result]:
    file = tmp_path / "uow.toml"
    file.write_text(CONFIGURATION)

    def run(verb: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, [verb, "D", *arguments, "--why", "w", "--by", "Jill", "-c", str(file)])

    return run


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--all"], set(AGES_S)),
        (["--match", "order-*"], {"order-1", "order-2", "order-3"}),
        (["--older-than", "10min"], {"order-1", "order-2", "parcel-1"}),
        (["--older-than", "11min"], {"order-1"}),
        (["--before", "+1h"], set(AGES_S)),
        (["--before", str(NOW).zfill(11)], set(AGES_S)),
        (["--before", str(NOW - 700_000).zfill(11), "--match", "*-1"], {"order-1"}),
        (["order-9", "order-8", "order-9"], {"order-9", "order-8"}),
    ],
    ids=lambda each: " ".join(sorted(each)),
)
def test_all_match_age_and_cut_off_choose_the_groups_together_w203(
    uow: Callable[..., Result], worker: AnsweringWorker, arguments: list[str], meant: set[str]
) -> None:
    done = uow("cancel", *arguments)
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, len(meant)), done.output
    assert set(worker.ids) == meant
    assert len(worker.commands) == len(set(worker.ids.values())) == len(meant)


def test_asked_again_under_one_id_each_group_has_the_command_it_had_w203(
    uow: Callable[..., Result], worker: AnsweringWorker
) -> None:
    uow("cancel", "--all", "--command-id", "sweep")
    assert worker.ids == {name: f"sweep:{name}" for name in AGES_S}
    uow("cancel", "order-1", "--command-id", "sweep")
    assert worker.ids["order-1"] == "sweep"
    longest = "x" * 255
    uow("cancel", longest, "other", "--command-id", "sweep")
    assert len(worker.ids[longest]) == len("sweep:") + 64


def test_without_an_answer_the_id_to_ask_again_under_is_told_w203(
    uow: Callable[..., Result], worker: AnsweringWorker
) -> None:
    worker.is_silent = True
    told = uow("cancel", "--all", "--command-id", "sweep")
    assert told.exit_code == 1
    assert "no answer about order-1, order-2, order-3 and 1 more in 30 s" in told.stderr
    assert told.stderr.endswith("--command-id sweep\n")


@pytest.mark.parametrize(
    "arguments", [[], ["order-1", "--all"], ["order-1", "--before", "+1h"], [""], ["x" * 256]], ids=str
)
def test_neither_nobody_nor_both_ways_of_naming_groups_are_taken(
    uow: Callable[..., Result], worker: AnsweringWorker, arguments: list[str]
) -> None:
    assert uow("cancel", *arguments).exit_code == 2
    assert worker.commands == []


def test_a_filter_that_nothing_matches_is_done_w203(uow: Callable[..., Result], worker: AnsweringWorker) -> None:
    done = uow("cancel", "--match", "nobody*")
    assert (done.exit_code, worker.commands) == (0, [])
    assert "no open group of D matches" in done.stderr


def test_remove_takes_one_id_and_one_number_w76(uow: Callable[..., Result], worker: AnsweringWorker) -> None:
    done = uow("remove", "order-1", "2", "--command-id", "r")
    assert (done.exit_code, done.stdout) == (0, "remove order-1: done: it did\n")
    assert worker.commands == [Command(b"r", Verb.REMOVE, b"order-1", "w", "Jill", (Range(2, 2),))]
    wrong: list[Any] = [uow("remove", "order-1"), uow("remove", "order-1", "0"), uow("remove", "order-1", "1", "--all")]
    assert [each.exit_code for each in wrong] == [2, 2, 2]


def test_a_whole_rule_is_released_with_an_answer_from_each_partition_b104(
    uow: Callable[..., Result], worker: AnsweringWorker
) -> None:
    done = uow("release", "--rule", "low-stock", "--command-id", "r")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        ["release low-stock, partition 0: not done: it did", "release low-stock, partition 1: done: it did"],
    )
    assert worker.commands[0] == Command(b"r", Verb.RELEASE, b"", "w", "Jill", rule="low-stock")
    told = json.loads(uow("release", "--rule", "low-stock", "--json").stdout.splitlines()[1])
    assert (told["rule"], told["partition"], told["done"]) == ("low-stock", 1, True)
    worker.obeying = set()
    assert uow("release", "--rule", "low-stock").exit_code == 1, "nothing waited anywhere"
    worker.is_silent = True
    silent = uow("release", "--rule", "low-stock", "--command-id", "r")
    assert (silent.exit_code, silent.stderr.endswith("--command-id r\n")) == (1, True)
    assert "no answer about rule low-stock and" not in silent.stderr
    for wrong in (["--rule", "a", "order-1"], ["--rule", "a", "--all"], ["--rule", ""]):
        assert uow("release", *wrong).exit_code == 2
    assert uow("cancel", "--rule", "low-stock").exit_code == 2, "only a release is for a whole rule"


@pytest.mark.parametrize("is_signed", [True, False])
def test_an_answer_to_another_command_of_the_same_id_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_signed: bool
) -> None:
    """Whoever reads `D.commands` knows the id, and may send another command under it before the answer comes."""
    key = ForeignSigner("ops").write(tmp_path / "key") if is_signed else ""
    (tmp_path / "uow.toml").write_text(
        f'[application]\nid = "A"\ncommand_key = "{key}"\n[destinations.D]\nhandling_policy = "pass_through"'
    )
    monkeypatch.setattr(group_commands, "counts_with", lambda settings, *topics: dict.fromkeys(topics, 1))
    right = Answer("c", "release", "order-1", "D", True, "delivers it", "why", "ops" if is_signed else "Jill", 5)
    others = [replace(right, **each) for each in ({"verb": "cancel"}, {"id": "order-2"}, {"by": "Jack"}, {"by": None})]
    log: list[FakeRecord] = []
    place = Tp("D.outcomes", 0)

    def append(answer: Answer, kind: bytes = b"answer") -> None:
        headers = [("uow-kind", kind), ("uow-command-id", answer.command_id.encode())]
        log.append(FakeRecord(len(log), headers, codec.frame(answer), tp=place))

    class Reader:
        def bounds(self, tps: Any) -> Any:
            return {place: (0, len(log))}

        def read(self, ranges: Any) -> Any:
            start, end = ranges[place]
            return [(place, log[start:end])] if end > start else []

    def send(destination: str, command: Command) -> None:
        for each in others:
            append(each)
        append(right, b"outcome")
        append(right)

    client = CommandClient(load(tmp_path / "uow.toml", {}), "D", SimpleNamespace(command=send), Reader())  # type: ignore[arg-type]
    command = Command(b"c", Verb.RELEASE, b"order-1", "why", "Jill")
    assert [reply.answer for reply in client.ask([command], 5)] == [right]
    assert len(log) == 6
