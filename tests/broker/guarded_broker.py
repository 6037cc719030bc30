"""A broker that lets nobody do anything: a listener that wants TLS and a login, an authorizer, and users to whom rights are given one by one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.conftest import QUIET
from tests.processes import PATIENCE_S, wait_for
from uow.embedded.broker import EmbeddedBroker

TLS = Path(__file__).parents[1] / "spark" / "tls"
USERS = [f"user{number}" for number in range(8)]
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
Right = tuple[str, str, str, str]
"""Kind of the resource, its name, `literal` or `prefixed`, and the operation, in the words of `kafka-acls`."""
_KINDS = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID}
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class GuardedBroker(EmbeddedBroker):
    """At `bootstrap` everything is allowed; at `behind` users log in, and may do what they were granted."""

    def __init__(self) -> None:
        users = " ".join(f'user_{name}="{name}-secret"' for name in USERS)
        settings = {
            "listener.name.proxied.plain.sasl.jaas.config": f"{LOGIN} {users};",
            "listener.name.proxied.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.proxied.ssl.keystore.type": "PEM",
            "listener.name.proxied.ssl.keystore.location": str(TLS / "server.pem"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        super().__init__(heap="384m", settings=settings, advertised=0)

    def _properties(self, controller: int) -> dict[str, str]:
        """The listener meant for a proxy is the guarded one, and advertises itself."""
        self._advertised = self._behind
        found = super()._properties(controller)
        kinds = "listener.security.protocol.map"
        return found | {kinds: found[kinds].replace("PROXIED:PLAINTEXT", "PROXIED:SASL_SSL")}


def login(user: str) -> dict[str, str]:
    """`[kafka]` of a user."""
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(TLS / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }


class Guard:
    """The rights of users on a broker."""

    def __init__(self, broker: GuardedBroker) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        """Gives rights, and waits until the broker knows."""
        rows = {*rights}
        new = [self._binding(user, right) for right in rows]
        for made in self._admin.create_acls(new).values() if new else ():
            made.result(PATIENCE_S)
        wait_for(lambda: self._held(user).issuperset(rows))

    def withdraw(self, user: str, rights: Iterable[Right]) -> None:
        """Takes rights away, and waits until the broker knows."""
        rows = {*rights}
        filters = [
            AclBindingFilter(*self._place(each), f"User:{user}", "*", _OPERATIONS[each[3]], AclPermissionType.ALLOW)
            for each in rows
        ]
        for gone in self._admin.delete_acls(filters).values() if filters else ():
            gone.result(PATIENCE_S)
        wait_for(lambda: not self._held(user) & rows)

    def set(self, user: str, rights: Iterable[Right]) -> None:
        """These, and no other."""
        rows = {*rights}
        self.withdraw(user, self._held(user) - rows)
        self.grant(user, rows)

    def _held(self, user: str) -> set[Right]:
        of_user = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        kinds, operations = ({value: name for name, value in table.items()} for table in (_KINDS, _OPERATIONS))
        return {
            (
                kinds[each.restype],
                each.name,
                each.resource_pattern_type.name.lower(),
                operations[each.operation],
            )
            for each in self._admin.describe_acls(of_user).result(PATIENCE_S)
        }

    def _binding(self, user: str, right: Right) -> AclBinding:
        return AclBinding(*self._place(right), f"User:{user}", "*", _OPERATIONS[right[3]], AclPermissionType.ALLOW)

    @staticmethod
    def _place(right: Right) -> tuple[ResourceType, str, ResourcePatternType]:
        return _KINDS[right[0]], right[1], ResourcePatternType[right[2].upper()]
