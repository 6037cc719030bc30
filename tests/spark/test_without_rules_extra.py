"""The sink, and the audit of destinations without rules, do without the extra `rules` (B-11)."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cel", "lxml", "jsonpath", "sqlalchemy"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
from types import SimpleNamespace
import uow.spark_sink.audit, uow.spark_sink.delta_sink, uow.spark_sink.file_sink
from uow.ops.destination_rules import rules_in_force
from uow.processor.rules.mirror import mirrored
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.rules.targets import target_topics
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.rules import Change, Row, Rule

rules = RuleSet(RuleTables((Change(1, "a", "b", 0),), (Rule("r", 1, "d"),), (Row("r", "*", 1, target_topic="t"),)))
settings = SimpleNamespace(rules=SimpleNamespace(source="sqlite:///rules.db"))
found = rules_in_force(settings, mirrored(rules))
print([*target_topics(found, "d", DestinationPolicy(HandlingPolicy.SINGLE_MESSAGE_DELIVERY))])
"""


def test_sink_and_audit_start_without_the_libraries_of_rules_and_the_mirror_serves_b11() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['t']\n"), done.stderr
