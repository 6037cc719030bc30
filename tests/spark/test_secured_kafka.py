"""`[kafka]` reaches Spark's own clients: a listener with TLS and a login, read by the sink's stream and by the audit's tasks."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.spark.stage import QUIET, Stage, c, plain
from uow.embedded.broker import EmbeddedBroker
from uow.spark_sink.kafka import Cluster
from uow.spark_sink.kafka_security import with_contents
from uow.spark_sink.tables import Table
from uow.topics.policies import DestinationPolicy, HandlingPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TLS = Path(__file__).with_name("tls")
PASSWORD = 'hush "me" \\ now'
LOGIN = "org.apache.kafka.common.security"
TRUSTED = {"ssl.ca.location": str(TLS / "ca.pem")}
SECURE = {"security.protocol": "sasl_ssl", **TRUSTED}
SCRAM = {**SECURE, "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "spark", "sasl.password": PASSWORD}

pytestmark = pytest.mark.timeout(600)


class SecuredBroker(EmbeddedBroker):
    """A broker with one more listener, at `secured`, which wants TLS and a login."""

    def __init__(self) -> None:
        jwks = (TLS / "jwks.json").as_uri()
        own = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(TLS / "server.pem"),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
            "scram-sha-256.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
            "oauthbearer.sasl.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            "oauthbearer.sasl.server.callback.handler.class": f"{LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": jwks,
            "sasl.oauthbearer.expected.audience": "kafka",
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}"
        settings = {f"listener.name.proxied.{name}": value for name, value in own.items()}
        super().__init__(heap="256m", jvm_flags=[allowed], settings=settings, advertised=0)

    def _properties(self, controller: int) -> dict[str, str]:
        """The listener meant for a proxy is the secured one, and advertises itself."""
        self._advertised = self._behind
        found = super()._properties(controller)
        kinds = "listener.security.protocol.map"
        return found | {kinds: found[kinds].replace("PROXIED:PLAINTEXT", "PROXIED:SASL_SSL")}


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with SecuredBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
        kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        wish = UserScramCredentialUpsertion("spark", kind, PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([wish]).values():
            future.result(30)
        yield broker


class TokenEndpoint(ThreadingHTTPServer):
    """An OAuth token endpoint over TLS, for one client."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TokenRequest)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[tuple[str | None, dict[str, list[str]]]] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}/token"


class TokenRequest(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.headers["User-Agent"], parse_qs(body)))  # type: ignore[attr-defined]
        token = (TLS / "token.jwt").read_text().strip()
        answer = json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 3600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    server = TokenEndpoint()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_sink_and_audit_read_a_listener_with_tls_by_password_and_by_token(
    spark: SparkSession, secured: SecuredBroker, endpoint: TokenEndpoint, tmp_path: Path, unique: str
) -> None:
    """The sink logs in by SCRAM for one batch, and by OAUTHBEARER for the next one, with Java's client and with librdkafka; the audit's tasks, too."""
    policy = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
    stage = Stage(spark, secured.bootstrap, tmp_path / "tables", unique, policy)
    oauth = {
        **SECURE,
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "spark",
        "sasl.oauthbearer.client.secret": PASSWORD,
        "sasl.oauthbearer.scope": "read",
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "https.ca.location": str(TLS / "ca.pem"),
    }
    for number, kafka in enumerate((SCRAM, oauth)):
        stage.send([c(f"x{number}", 1), c(f"x{number}", 2, end=True), plain("a")])
        stage.work()
        stage.cluster = Cluster(secured.behind, with_contents(kafka))
        stage.sink()
        assert len(stage.rows(Table.UNITS)) == number + 1
    assert stage.audit().is_clean
    stage.close()
    assert {"Java" in (agent or "") for agent, _ in endpoint.asked} == {True, False}, "both kinds of clients ask"
    assert {wish["grant_type"][0] for _, wish in endpoint.asked} == {"client_credentials"}
