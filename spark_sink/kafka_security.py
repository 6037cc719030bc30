"""Security of connections to Kafka, from librdkafka's properties (`[kafka]`) to those of Spark's own clients, which are Java's.

| librdkafka | Java |
| --- | --- |
| `ssl.ca.location`, `.pem`; `ssl.certificate.*`, `ssl.key.*` | trust store and key store of type `PEM`, by content |
| `ssl.keystore.location`, `.password` | key store of type `PKCS12` |
| `ssl.endpoint.identification.algorithm` `none` | an empty text |
| `sasl.username`, `sasl.password` (`PLAIN`, `SCRAM-*`) | `sasl.jaas.config` |
| `sasl.oauthbearer.*`, method `oidc`; `https.ca.*` | `sasl.jaas.config`, login callback handler, endpoint allowed by a JVM property |

Files are read once, on the machine of the command, and travel by their content: executors on other machines, which use both kinds of clients, need
none of them. A security property without an equivalent is refused by name, since the connection would be less safe than the settings say.

Belongs here: the translation. Does not belong here: other options of a read (`uow.spark_sink.kafka`), and what Spark hides of all options
(`uow.spark_sink.session.REDACTED`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from uow.schemas.error_classes import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""JVM property without which newer Kafka clients ask no token endpoint."""

_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGIN: Final = {"PLAIN": _PLAIN_LOGIN, "SCRAM-SHA-256": _SCRAM_LOGIN, "SCRAM-SHA-512": _SCRAM_LOGIN}
_OAUTH: Final = "OAUTHBEARER"
_OAUTH_LOGIN: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")

_FILES: Final = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
    "https.ca.location": "https.ca.pem",
}
_STORES: Final = {
    "ssl.ca.pem": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate.pem": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key.pem": ("ssl.keystore.type", "ssl.keystore.key"),
}
_SAME: Final = ("client.dns.lookup", "ssl.key.password")
_CREDENTIALS: Final = ("sasl.username", "sasl.password")
_OIDC: Final = {
    "sasl.oauthbearer.client.id": "clientId",
    "sasl.oauthbearer.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
}
_OF_OAUTH: Final = (
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.extensions",
    "https.ca.pem",
    *_OIDC,
)
_KEYSTORE: Final = ("ssl.keystore.location", "ssl.keystore.password")
_DEFAULTS: Final = {"enable.ssl.certificate.verification": "true", "enable.sasl.oauthbearer.unsecure.jwt": "false"}
_KNOWN: Final = frozenset(
    {*_MECHANISMS, *_STORES, *_SAME, *_CREDENTIALS, *_OF_OAUTH, *_KEYSTORE, "ssl.endpoint.identification.algorithm"}
)
_SECURITY: Final = ("ssl", "sasl", "https.", "enable.ssl", "enable.sasl")


def with_contents(kafka: Mapping[str, str]) -> dict[str, str]:
    """The same properties of librdkafka, with the content of PEM files in place of their names.

    Raises:
        ConfigError: A file cannot be read.
    """
    found = {name: value for name, value in kafka.items() if name not in _FILES}
    for name, content in _FILES.items():
        if (
            name not in kafka or kafka[name] == "probe"
        ):  # the machine's own authorities, which every client finds itself
            continue
        try:
            found.setdefault(content, Path(kafka[name]).read_text())
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise _refusal(name, f"must name a PEM file, for Spark's clients: {why}", kafka[name]) from error
    return found


def java_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """Security properties in the spelling of Java's clients; tuning properties have no meaning for Spark and are left out.

    Args:
        kafka: librdkafka properties; contents in place of files.

    Returns:
        Properties without Spark's prefix `kafka.`.

    Raises:
        ConfigError: One has no equivalent.
    """
    protocol = kafka.get("security.protocol", "plaintext").upper()
    _check(kafka)
    found = {name: kafka[name] for name in _SAME if name in kafka}
    if "security.protocol" in kafka:
        found["security.protocol"] = protocol
    if "ssl.endpoint.identification.algorithm" in kafka:
        algorithm = kafka["ssl.endpoint.identification.algorithm"]
        found["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    for name, (kind, target) in _STORES.items():
        if name in kafka:
            found |= {kind: "PEM", target: kafka[name]}
    if "ssl.keystore.location" in kafka:
        found |= {name: kafka[name] for name in _KEYSTORE if name in kafka} | {"ssl.keystore.type": "PKCS12"}
    return found | (_sasl(kafka) if protocol.startswith("SASL_") else {})


def jvm_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """Properties of each JVM that connects to Kafka."""
    url = kafka.get("sasl.oauthbearer.token.endpoint.url")
    return {ALLOWED_URLS: url} if url else {}


def allow_token_endpoint(spark: SparkSession, kafka: Mapping[str, str]) -> None:
    """Lets the clients of the driver's JVM ask the token endpoint; executors of a cluster get the property when they are started."""
    jvm: Any = spark.sparkContext._jvm
    for name, value in jvm_properties(kafka).items():
        jvm.java.lang.System.setProperty(name, value)


def _check(kafka: Mapping[str, str]) -> None:
    for name, value in kafka.items():
        if name in _KNOWN or not name.startswith(_SECURITY) or value == _DEFAULTS.get(name):
            continue
        raise _refusal(
            name,
            "has no equivalent in Spark's Kafka clients, which are Java's: remove it, or run these jobs with settings of their own",
        )
    key = kafka.get("ssl.key.pem", "")
    if "PRIVATE KEY" in key and not re.search("BEGIN (ENCRYPTED )?PRIVATE KEY", key):
        name = "ssl.key.pem (ssl.key.location)"
        raise _refusal(
            name, "must be a key in PKCS #8, for Spark's clients: `openssl pkcs8 -topk8 -in KEY` writes it so"
        )


def _sasl(kafka: Mapping[str, str]) -> dict[str, str]:
    name = next((each for each in _MECHANISMS if each in kafka), "sasl.mechanism")
    mechanism = kafka.get(name, "GSSAPI").upper()
    if mechanism == _OAUTH:
        return {"sasl.mechanism": mechanism} | _oauth(kafka)
    if mechanism not in _LOGIN:
        known = ", ".join([*_LOGIN, _OAUTH])
        raise _refusal(name, f"must be one of {known}: no other one reaches Spark's clients", mechanism)
    user, password = (_required(kafka, each) for each in _CREDENTIALS)
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(_LOGIN[mechanism], username=user, password=password)}


def _oauth(kafka: Mapping[str, str]) -> dict[str, str]:
    method = kafka.get("sasl.oauthbearer.method", "default")
    if method != "oidc":
        raise _refusal(
            "sasl.oauthbearer.method", "must be oidc: Spark's clients get tokens from an endpoint only", method
        )
    url = _required(kafka, "sasl.oauthbearer.token.endpoint.url")
    if not re.fullmatch(r"https?://[^\s\"'\\,]+", url):
        raise _refusal("sasl.oauthbearer.token.endpoint.url", "must be an HTTP URL")
    options = {option: kafka[name] for name, option in _OIDC.items() if name in kafka}
    for pair in filter(None, kafka.get("sasl.oauthbearer.extensions", "").split(",")):
        name, _, value = pair.partition("=")
        options[f"extension_{name}"] = value
    if "https.ca.pem" in kafka:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": kafka["https.ca.pem"]}
    return {
        "sasl.login.callback.handler.class": _OAUTH_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.jaas.config": _jaas(_OAUTH_LOGIN, **options),
    }


def _required(kafka: Mapping[str, str], name: str) -> str:
    if not kafka.get(name):
        raise _refusal(name, "is needed by Spark's clients for this mechanism")
    return kafka[name]


def _jaas(module: str, **options: str) -> str:
    return " ".join([f"{module} required", *(f"{name}={_quoted(value)}" for name, value in options.items())]) + ";"


def _quoted(text: str) -> str:
    """A text as JAAS reads it: in the escapes of C."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "\\r").replace("\n", "\\n") + '"'


def _refusal(name: str, rule: str, value: str = "********") -> ConfigError:
    """The error about a setting; its value is not shown, unless it is known to be no secret."""
    return ConfigError(f"kafka.{name}", value, rule)
