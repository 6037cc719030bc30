"""The judge of a client proof sees damage of every kind, and passes over what an honest client does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from uow.cli.main import main
from uow.prove.client_judge import Told, judge, read_journal
from uow.prove.seen_records import Log, Rec


class Story:
    """What programs were told, and what is in the topics: a plain producer, a transacted one, and two readers."""

    def __init__(self) -> None:
        self.clock = 0
        self.journals: dict[str, Told] = {}
        self.came: Log = {0: []}
        self.onward: Log = {0: []}
        for who in ("plain-0", "transacted-0", "reader-0", "reader-1"):
            self.run(who)
        for n in range(4):
            self.say("plain-0", "asked", n=n)
            self.say("plain-0", "sent", n=n, partition=0, offset=n)
            self.append(self.came, f"plain-0:{n}")
        for first, fate in ((0, "committed"), (2, "rolled back"), (4, "committed")):
            self.say("transacted-0", "begins transaction", n=first + 1, first=first)
            self.say("transacted-0", fate, n=first + 1)
            if fate == "committed":
                self.append(self.came, f"transacted-0:{first}", f"transacted-0:{first + 1}")
        for rec in self.came[0]:
            self.append(self.onward, (rec.value or b"").decode())
        for offset in range(len(self.onward[0])):
            self.got(offset, redelivered=False)
            if offset % 2:
                self.acknowledge(offset)

    def run(self, who: str) -> None:
        """Another process begins."""
        self.journals.setdefault(who, Told()).runs.append([])
        self.say(who, "begins")

    def say(self, who: str, what: str, **more: Any) -> dict[str, Any]:
        self.clock += 10
        line = {"what": what, "at": self.clock, **more}
        self.journals[who].runs[-1].append(line)
        return line

    def got(self, offset: int, who: str = "reader-0", redelivered: bool | None = None) -> None:
        self.say(who, "got", partition=0, offset=offset, redelivered=redelivered)

    def acknowledge(self, offset: int, who: str = "reader-0") -> None:
        self.say(who, "acknowledged", partition=0, offset=offset, begun=self.clock + 5)

    @staticmethod
    def append(log: Log, *values: str) -> None:
        for value in values:
            log[0].append(Rec(0, len(log[0]), b"key", value.encode(), (), 0))

    @property
    def anomalies(self) -> set[str]:
        return {*judge(self.journals, self.came, self.onward).anomalies}


def test_an_honest_client_is_not_accused() -> None:
    """A kill in between: a record that nobody knows of, a transaction without an end, repeats that are not marked as new."""
    story = Story()
    story.run("plain-0")
    story.say("plain-0", "asked", n=4)
    story.run("plain-0")
    story.say("plain-0", "asked", n=5)
    story.say("plain-0", "ambiguous", n=5, found=False)
    story.say("plain-0", "sent", n=5, partition=0, offset=9)
    story.append(story.came, "plain-0:5", "plain-0:5")
    story.append(story.onward, "plain-0:5", "plain-0:5")
    story.run("transacted-0")
    story.say("transacted-0", "begins transaction", n=7, first=6)
    story.got(8, redelivered=None)
    story.run("reader-0")
    story.got(8, redelivered=None)
    story.got(9, redelivered=False)
    story.acknowledge(9)
    assert story.anomalies == set()


def zombie(story: Story) -> None:
    story.acknowledge(3, "reader-1")


def comes_again(story: Story) -> None:
    story.run("reader-1")
    story.got(7, "reader-1")


def lies(story: Story) -> None:
    story.append(story.came, "plain-0:0")
    story.run("reader-1")
    story.got(7, "reader-1", redelivered=False)


def jumps(story: Story) -> None:
    lines = story.journals["reader-0"].runs[0]
    story.journals["reader-0"].runs[0] = [line for line in lines if line.get("offset") not in (4, 5)]


def ends_early(story: Story) -> None:
    story.append(story.came, "plain-0:9")
    story.append(story.onward, "plain-0:9")


def refused_and_there(story: Story) -> None:
    story.say("plain-0", "asked", n=9)
    story.say("plain-0", "refused", n=9, error="SendRejectedError")
    story.append(story.came, "plain-0:9")


def swap(log: Log, first: int, second: int) -> None:
    one, two = log[0][first], log[0][second]
    log[0][first], log[0][second] = one._replace(value=two.value), two._replace(value=one.value)


@pytest.mark.parametrize(
    ("damage", "signs"),
    [
        (lambda story: story.came[0].pop(2), {"missing"}),
        (lambda story: story.append(story.came, "plain-0:0"), {"doubled"}),
        (lambda story: story.append(story.came, "plain-0:77"), {"invented"}),
        (lambda story: story.append(story.came, "transacted-0:77"), {"invented"}),
        (lambda story: swap(story.came, 1, 2), {"order", "missing"}),
        (refused_and_there, {"not refused"}),
        (lambda story: story.append(story.came, "transacted-0:2", "transacted-0:3"), {"not rolled back"}),
        (lambda story: story.append(story.came, "transacted-0:2"), {"half"}),
        (lambda story: story.came[0].pop(), {"half", "missing"}),
        (lambda story: story.onward[0].pop(), {"not forwarded"}),
        (lambda story: story.append(story.onward, "plain-0:0"), {"forwarded twice"}),
        (lambda story: swap(story.onward, 1, 2), {"overtaken"}),
        (jumps, {"passed over", "lost"}),
        (ends_early, {"lost"}),
        (comes_again, {"came again"}),
        (zombie, {"went back"}),
        (lies, {"mark"}),
        (lambda story: story.onward[0].clear(), {"nothing"}),
    ],
)
def test_damage_is_seen(damage: Any, signs: set[str]) -> None:
    story = Story()
    damage(story)
    assert signs <= story.anomalies


def test_a_line_that_a_kill_cut_off_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plain-0.jsonl"
    begins = json.dumps({"what": "begins", "at": 1})
    path.write_text(f'{begins}\n{{"what": "asked", "n"\n{begins}\n')
    assert [len(run) for run in read_journal(path).runs] == [1, 1]


def test_faults_that_are_none_of_a_client_are_refused_by_name() -> None:
    result = CliRunner().invoke(main, ["prove", "--client", "--faults", "kill,clock"])
    assert result.exit_code == 2
    assert "clock is possible only for workers" in result.output
