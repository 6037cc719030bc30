"""Security properties of librdkafka in the words of Java's clients, and those that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from uow.schemas.error_classes import ConfigError
from uow.spark_sink.kafka_security import java_properties, jvm_properties, with_contents

OIDC = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login/token",
}
PLAIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "plain", "sasl.username": "me", "sasl.password": "hush"}
KEY = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"


def test_what_is_no_security_is_left_out() -> None:
    assert java_properties({"fetch.min.bytes": "5", "socket.keepalive.enable": "true"}) == {}
    assert java_properties({"client.dns.lookup": "use_all_dns_ips"}) == {"client.dns.lookup": "use_all_dns_ips"}


def test_a_password_is_a_quoted_option_of_jaas() -> None:
    found = java_properties(PLAIN | {"sasl.password": 'a"b\\c\nd'})
    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.mechanism"] == "PLAIN"
    assert found["sasl.jaas.config"].endswith(' username="me" password="a\\"b\\\\c\\nd";')


def test_tokens_need_a_handler_and_leave_to_ask_the_endpoint() -> None:
    more = {
        "sasl.oauthbearer.client.id": "i",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.extensions": "a=b,c=d=e",
    }
    found = java_properties(OIDC | more)
    assert found["sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    assert found["sasl.jaas.config"].endswith(
        ' required clientId="i" clientSecret="s" extension_a="b" extension_c="d=e";'
    )
    assert [*jvm_properties(OIDC).values()] == ["https://login/token"]
    assert jvm_properties(PLAIN) == {}


def test_files_travel_by_content_and_verification_of_names_is_switched_by_an_empty_text(tmp_path: Path) -> None:
    file = tmp_path / "some.pem"
    file.write_text(KEY)
    names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
    kafka = with_contents(dict.fromkeys(names, str(file)) | {"security.protocol": "ssl", "ssl.key.password": "p"})
    assert str(file) not in kafka.values()
    assert java_properties(kafka | {"ssl.endpoint.identification.algorithm": "none"}) == {
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": KEY,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": KEY,
        "ssl.keystore.key": KEY,
        "ssl.key.password": "p",
    }
    assert with_contents({"ssl.ca.location": "probe"}) == {}
    store = java_properties({"ssl.keystore.location": "a.p12", "ssl.keystore.password": "p"})
    assert store == {"ssl.keystore.location": "a.p12", "ssl.keystore.password": "p", "ssl.keystore.type": "PKCS12"}


@pytest.mark.parametrize(
    ("kafka", "setting"),
    [
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"),
        ({"ssl.crl.location": "hush"}, "ssl.crl.location"),
        ({"ssl_ca": "hush"}, "ssl_ca"),
        ({"ssl.cipher.suites": "hush"}, "ssl.cipher.suites"),
        ({"sasl.kerberos.keytab": "hush"}, "sasl.kerberos.keytab"),
        ({"sasl.pasword": "hush"}, "sasl.pasword"),
        ({"ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----\nhush"}, "ssl.key.pem"),
        ({"security.protocol": "sasl_ssl"}, "sasl.mechanism"),
        (PLAIN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({**PLAIN, "sasl.password": ""}, "sasl.password"),
        (OIDC | {"sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method"),
        (OIDC | {"sasl.oauthbearer.token.endpoint.url": "https://me hush"}, "sasl.oauthbearer.token.endpoint.url"),
        ({"ssl.ca.location": "/nowhere/at/all"}, "ssl.ca.location"),
        ({"ssl.ca.location": "/"}, "ssl.ca.location"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name_and_without_its_secret(
    kafka: dict[str, str], setting: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        java_properties(with_contents(kafka))
    assert str(caught.value).startswith(f"kafka.{setting}")
    assert "hush" not in str(caught.value)


def test_defaults_that_are_spelled_out_are_no_obstacle() -> None:
    assert java_properties({"enable.ssl.certificate.verification": "true"}) == {}
