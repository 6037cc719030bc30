"""Topics on a broker: missing ones are created, existing ones compared with the expected settings.

Belongs here: all use of Kafka's admin interface for topics; nothing is ever deleted or altered. Does not
belong here: the expected settings (`uow.topics.catalogue`).
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ConsumerGroupDescription,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicMetadata,
)
from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_fixed,
)

from uow.topics.access import denied_text
from uow.topics.catalogue import TopicSpec, durability

TIMEOUT_S = 15.0
LOOK_S = 0.1
"""Between two looks at errors while a question is under way."""
REFUSALS = 3
"""Refused logins during one question that count: a broker that is going down may give one by accident."""
_TOKEN = "Failed to acquire SASL OAUTHBEARER token"
"""With these words the library tells that it could not fetch a token, under the code of a refused login."""
MAX_REPLICATION = 3
MISSING = "missing"
HIDDEN = "hidden"
"""In place of a value: this user may not know."""
SPREAD_S = 5.0
"""Time within which all brokers know a topic that was created a moment ago."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deviation:
    """One difference between a topic and its expected settings.

    Attributes:
        topic: Topic name.
        what: `topic`, `partitions`, or the name of a topic setting.
        expected: The expected value.
        actual: The actual value.
        reason: The reason for the expected value.
        advised: True for mere advice: it is reported, but nothing fails without it.
    """

    topic: str
    what: str
    expected: str
    actual: str
    reason: str
    advised: bool = False

    def __str__(self) -> str:
        must = "should" if self.advised else "must"
        return f"{self.topic}: {self.what} is {self.actual}, {must} be {self.expected}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Created:
    """Topics that were created, and topics that existed already."""

    created: tuple[str, ...]
    existing: tuple[str, ...]


class Admin(AdminClient):
    """An admin client whose questions about topics tell a refused login at once: the library alone says after a while that no broker answers.

    A question is asked once, with the whole time-out, by a thread of its own: whoever asks again instead throws the answer of a slow cluster away.

    Args:
        properties: Of the handle.
        logger: Gets its lines.
    """

    def __init__(self, properties: Mapping[str, Any], logger: logging.Logger) -> None:
        self._heard: list[KafkaError] = []
        self._refusals: list[KafkaError] = []
        own: dict[str, Any] = {**properties, "error_cb": self._on_error}
        super().__init__(own, logger=logger)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # the one before says why
            return
        if _TOKEN in error.str():  # whoever issues tokens may be away, as a broker may
            self._heard.append(KafkaError(KafkaError._TRANSPORT, error.str()))
            return
        self._heard.append(error)
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL):
            self._refusals.append(error)

    def list_topics(self, topic: str | None = None, timeout: float = TIMEOUT_S) -> ClusterMetadata:
        """As the library's.

        Raises:
            KafkaException: No broker answered in time, or brokers refused the login or TLS several times meanwhile; with the library's reason for it.
        """
        self.poll(0)  # errors arrive here; those from before this question are no answer to it
        self._heard, self._refusals = [], []
        answer: Future[ClusterMetadata] = Future()
        threading.Thread(target=self._ask, args=(answer, topic, timeout), daemon=True).start()
        while not wait((answer,), timeout=LOOK_S).done:
            self.poll(0)
            if len(self._refusals) >= REFUSALS:
                raise KafkaException(self._refusals[-1])
        try:
            return answer.result()
        except KafkaException as failure:
            self.poll(0)
            raise KafkaException([failure.args[0], *self._heard][-1]) from None

    def _ask(self, answer: Future[ClusterMetadata], topic: str | None, timeout: float) -> None:
        asked = () if topic is None else (topic,)
        try:
            answer.set_result(super().list_topics(*asked, timeout=timeout))
        except BaseException as failure:  # noqa: BLE001 - it is raised by the one who asked
            answer.set_exception(failure)


def denied(admin: AdminClient, names: Sequence[str]) -> list[str]:
    """Those of the topics that this user may not even know of.

    Raises:
        KafkaException: The broker does not answer.
    """
    found = []
    answers = admin.describe_topics(TopicCollection([*names]), request_timeout=TIMEOUT_S) if names else {}
    for name, answer in answers.items():
        try:
            answer.result()
        except KafkaException as failure:
            if failure.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found.append(name)
            elif failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found


_MOVING: Final = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
"""A group's coordinator has moved, or a new cluster makes the topic of offsets just now: the next question finds it."""


def _is_moving(failure: BaseException) -> bool:
    return isinstance(failure, KafkaException) and failure.args[0].code() in _MOVING


def described_group(admin: AdminClient, group: str, timeout: float = TIMEOUT_S) -> ConsumerGroupDescription:
    """The members of a consumer group, and what they own. Asks again while its coordinator moves.

    Args:
        admin: Connected client.
        group: The group's name.
        timeout: Of one question, and of all, seconds.

    Raises:
        KafkaException: There is no such group, it may not be described, or there was no answer in time.
    """
    again = Retrying(
        retry=retry_if_exception(_is_moving), stop=stop_after_delay(timeout), wait=wait_fixed(0.1), reraise=True
    )
    found: ConsumerGroupDescription = again(
        lambda: admin.describe_consumer_groups([group], request_timeout=timeout)[group].result()
    )
    return found


def require_group(admin: AdminClient, group: str) -> None:
    """Raises if this user may not use a consumer group: a consumer that may not waits until its time is over.

    Raises:
        KafkaException: It may not, or the broker does not answer.
    """
    try:
        described_group(admin, group)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(KafkaError(error.code(), f"consumer group {group}: {error.str()}")) from None
        if error.code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise


def admin_client(bootstrap_servers: str, kafka: Mapping[str, str], logger: logging.Logger = _log) -> AdminClient:
    """A client that writes its log lines to Python's `logging` instead of standard error.

    Args:
        bootstrap_servers: Addresses of the cluster.
        kafka: Further librdkafka properties.
        logger: Gets the lines: one for each broken connection and each try, so that a client that lives long needs one of its own.
    """
    return Admin({**kafka, "bootstrap.servers": bootstrap_servers}, logger)


def default_replication(admin: AdminClient) -> int:
    """The smaller of 3 and the number of brokers.

    Raises:
        KafkaException: No broker answers.
    """
    return min(MAX_REPLICATION, len(admin.list_topics(timeout=TIMEOUT_S).brokers))


def create_missing(admin: AdminClient, specs: Sequence[TopicSpec]) -> Created:
    """Creates the topics of one destination that do not exist; those that do stay as they are.

    If some exist, new ones get the partition count of the first that exists, starting with `D.components` (W-107).

    Args:
        admin: Connected client.
        specs: From `uow.topics.catalogue.expected`.

    Raises:
        KafkaException: The broker refuses one, or does not answer.
    """
    counts = partition_counts(admin)
    existing = [spec for spec in specs if spec.name in counts]
    count = next((counts[spec.name] for spec in existing if spec.counted), None)
    missing = [
        replace(spec, partitions=count) if count is not None and spec.counted else spec
        for spec in specs
        if spec.name not in counts
    ]
    new = [NewTopic(spec.name, spec.partitions, spec.replication, config=spec.config) for spec in missing]
    created = []
    for name, done in (admin.create_topics(new, operation_timeout=TIMEOUT_S) if new else {}).items():
        try:
            done.result()
        except KafkaException as error:
            if (
                error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS
            ):  # another client was faster, which is just as good
                raise
        else:
            created.append(name)
    _wait_visible(admin, [spec.name for spec in missing])
    return Created(tuple(created), tuple(spec.name for spec in specs if spec.name not in created))


def _wait_visible(admin: AdminClient, names: Sequence[str], partitions: int = 1) -> None:
    """Returns once brokers list these topics with a leader for each partition, which is a little after the controller's answer.

    Raises:
        KafkaException: They do not appear.
    """

    def are_there() -> bool:
        topics = admin.list_topics(timeout=TIMEOUT_S).topics
        return all(name in topics and _is_led(topics[name], partitions) for name in names)

    try:
        Retrying(stop=stop_after_attempt(300), wait=wait_fixed(0.05), retry=retry_if_result(operator.not_))(are_there)
    except RetryError as error:
        text = f"no broker lists the new topics {', '.join(names)}"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text)) from error


def _is_led(topic: TopicMetadata, partitions: int) -> bool:
    return len(topic.partitions) >= partitions and all(each.leader >= 0 for each in topic.partitions.values())


def check(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[Deviation]:
    """Every deviation of the topics of one destination (W-70, W-88, W-120); empty if all is right.

    Args:
        admin: Connected client.
        specs: From `uow.topics.catalogue.expected`; the first names `D.components`.

    Raises:
        KafkaException: The broker does not answer, or may not be asked.
    """
    there = admin.list_topics(timeout=TIMEOUT_S).topics
    counts = {name: len(topic.partitions) for name, topic in there.items()}
    present = [spec for spec in specs if spec.name in counts]
    settings = topic_settings(admin, [spec.name for spec in present])
    count = next((counts[spec.name] for spec in present if spec.counted), 0)
    hidden = denied(admin, [spec.name for spec in specs if spec.name not in counts])
    found = []
    for spec in specs:
        if spec.name in hidden:
            found.append(Deviation(spec.name, "topic", "there", HIDDEN, denied_text(spec.name)))
            continue
        if spec.name not in counts:
            found.append(Deviation(spec.name, "topic", "there", MISSING, "create it with `uow topics create`"))
            continue
        exceeds = spec.may_exceed and counts[spec.name] > count
        if spec.counted and counts[spec.name] != count and not exceeds:
            reason = f"all topics of a destination have the partition count of {specs[0].name}"
            found.append(Deviation(spec.name, "partitions", str(count), str(counts[spec.name]), reason))
        replicas = min((len(each.replicas) for each in there[spec.name].partitions.values()), default=1)
        found.extend(_setting_deviations(spec, replicas, settings[spec.name]))
        if replicas < spec.min_replication:
            reason = "under strict order a record must outlive the loss of a broker"
            most = f"at least {spec.min_replication}"
            found.append(Deviation(spec.name, "replication", most, str(replicas), reason, spec.is_trial))
    return found


def check_existing(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[Deviation]:
    """Every deviation of topics that one broker has listed: asked again for some seconds while another broker lists fewer.

    Right behind a creation the brokers of a cluster do not all know the new topics yet.

    Args:
        admin: Connected client.
        specs: As for `check`.

    Raises:
        KafkaException: The broker does not answer, or may not be asked.
    """
    again = Retrying(
        stop=stop_after_delay(SPREAD_S),
        wait=wait_fixed(0.1),
        retry=retry_if_result(lambda found: any(each.actual == MISSING for each in found)),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else [],
    )
    return again(check, admin, specs)


def check_mirrors(counts: Mapping[str, int], components: str, prefixes: Sequence[str]) -> list[Deviation]:
    """Mirrors of a destination's input that have another partition count, so that no worker could continue from them (W-111).

    Args:
        counts: Partition count by topic name.
        components: Name of `D.components`.
        prefixes: Prefixes of the names of mirrored topics (`mirror_prefixes`).
    """
    reason = (
        "a mirror must have the partition count of the original topic, otherwise ids belong to other partitions there"
    )
    mirrors = [f"{prefix}{components}" for prefix in prefixes]
    return [
        Deviation(name, "partitions", str(counts[components]), str(counts[name]), reason)
        for name in mirrors
        if components in counts and counts.get(name, counts[components]) != counts[components]
    ]


def _setting_deviations(spec: TopicSpec, replicas: int, actual: Mapping[str, str]) -> list[Deviation]:
    found = []
    for name, expectation in {**spec.expectations, **durability(replicas)}.items():
        value = actual.get(name, "")
        if not expectation.accepts(value):
            advised = expectation.advised or spec.of_others
            found.append(Deviation(spec.name, name, expectation.text, value, expectation.reason, advised))
    told = {(each.what, each.advised) for each in found}
    for name, expectation in spec.strict.items():
        value = actual.get(name, "")
        if not expectation.accepts(value) and (name, spec.is_trial) not in told:
            found.append(Deviation(spec.name, name, expectation.text, value, expectation.reason, spec.is_trial))
    return found


def grow(admin: AdminClient, names: Sequence[str], partitions: int) -> None:
    """Gives topics more partitions, one after another, and waits until brokers list them.

    Raises:
        KafkaException: The broker refuses one, or they do not appear.
    """
    for name in names:
        for done in admin.create_partitions([NewPartitions(name, partitions)], operation_timeout=TIMEOUT_S).values():
            done.result()
    _wait_visible(admin, names, partitions)


def partition_counts(admin: AdminClient) -> dict[str, int]:
    """Partition count of every existing topic.

    Raises:
        KafkaException: No broker answers.
    """
    return {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=TIMEOUT_S).topics.items()}


def topic_ids(admin: AdminClient, names: Sequence[str]) -> dict[str, str]:
    """Ids of topics: a topic that was deleted and made again has another one (S-15). Topics that do not exist are left out.

    Raises:
        KafkaException: The broker does not answer, or may not be asked.
    """
    found = {}
    for name, answer in admin.describe_topics(TopicCollection([*names]), request_timeout=TIMEOUT_S).items():
        try:
            found[name] = str(answer.result().topic_id)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found


def topic_settings(admin: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Effective settings of topics that exist.

    Raises:
        KafkaException: The broker does not answer, or may not be asked.
    """
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = admin.describe_configs(resources, request_timeout=TIMEOUT_S) if resources else {}
    found = {}
    for resource, answer in answers.items():
        try:
            found[resource.name] = {name: entry.value or "" for name, entry in answer.result().items()}
        except KafkaException as failure:
            error = failure.args[0]
            raise KafkaException(
                KafkaError(error.code(), f"settings of topic {resource.name}: {error.str()}")
            ) from None
    return found
