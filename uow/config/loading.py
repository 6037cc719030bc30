"""Reading the configuration: `uow.toml`, then the environment on top, every complaint at once (`docs/configuration.md`).

Belongs here: reading, checking against the declarations in `uow.config.settings`, and the origin of each value. Does not
belong here: the declarations, and the effects of settings.

pydantic-settings is not used: it can tell neither where a value came from, nor which of several destinations a variable
such as `UOW_DESTINATIONS__WEST_MEGAZON__SHAPE` means, and both are needed here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from uow.config.command_key_files import read_signer
from uow.config.route_settings import route_complaints
from uow.config.settings import (
    DESTINATION,
    KAFKA_RULES,
    LATER,
    LEGAL_NAME,
    ROUTER,
    SECTIONS,
    SETTINGS,
    SHOWN_ENDINGS,
    SHOWN_KAFKA,
    WITH_UNDERSCORE,
    Profile,
    Setting,
    is_legal_name,
)
from uow.config.value_types import WrongValue, parsed, unknown
from uow.schemas.error_classes import Complaint, ConfigError
from uow.schemas.masking import MASK, masked_path, masked_value
from uow.topics.catalogue import DestinationTopics
from uow.topics.command_keys import CommandSigner
from uow.topics.policies import (
    NEVER_MS,
    AliasFamily,
    DestinationPolicy,
    ExceptionDestination,
    HandlingPolicy,
    LatePolicy,
    Oversize,
    Routing,
    Shape,
)
from uow.topics.routers import RouterSettings, RulesSettings
from uow.topics.strict_order import (
    ONE_AT_A_TIME,
    ONLY_STRICT,
    STRICT_DEFAULTS,
    OrderOverrideWarning,
    overrides,
)

if TYPE_CHECKING:
    from uow.processor.kafka.worker_settings import WorkerSettings

DEFAULT_FILE = Path("uow.toml")
DEFAULT_ORIGIN = "default"
PREFIX = "UOW_"
DELIMITER = "__"
LEAST_COMMANDS = 1000
"""Least `closed_max_groups` of a destination with `command_keys`."""
NOT_SHOWN = "..."
"""Printed in a complaint instead of a value that is in the wrong place, since it may be a secret that belongs elsewhere."""
NAMED = ("destinations", "routers", "templates")
"""Sections that contain further sections, each with a name."""

_BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}
STANDARD: Mapping[str, Any] = {setting.key: setting.default for setting in SETTINGS if setting.section == DESTINATION}
"""Default of each setting of a destination."""
_KAFKA_RULES = {name: rule for rule in KAFKA_RULES for name in rule.properties}


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value as the file or the environment gave it, and its origin: the file's path or the variable's name."""

    value: Any = field(repr=False)
    origin: str


_NOTHING = GivenValue(None, DEFAULT_ORIGIN)


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting's effective value and where it came from."""

    name: str
    value: Any = field(repr=False)
    origin: str

    @property
    def is_secret(self) -> bool:
        section, _, key = self.name.partition(".")
        return section == "kafka" and key not in SHOWN_KAFKA and not key.endswith(SHOWN_ENDINGS)

    @property
    def shown(self) -> Any:
        """The value as `uow.toml` would spell it, with secrets masked."""
        if self.name == "application.command_key":
            return masked_path(self.value)
        return MASK if self.is_secret else _plain(self.value)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(str(item) for item in value)
    if isinstance(value, tuple | list):
        return [masked_value(str(item)) for item in value]
    if isinstance(value, str):
        return masked_value(str(value))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """A configuration that was read and has no mistakes.

    Attributes:
        effective: Every setting by name (`worker.web`, `kafka.security.protocol`, `destinations.megazon.shape`).
        destinations: Policies by destination name.
        warnings: Legal settings that may surprise (W-72, W-73), one line each.
        routers: Routers by name.
        overrides: Settings that strict order overrides (S-27); they are among the warnings too.
    """

    effective: Mapping[str, Effective]
    destinations: Mapping[str, DestinationPolicy]
    warnings: tuple[str, ...] = ()
    routers: Mapping[str, RouterSettings] = field(default_factory=dict)
    overrides: tuple[OrderOverrideWarning, ...] = ()

    def value(self, name: str) -> Any:
        """Effective value of a setting, for example `worker.web`."""
        return self.effective[name].value

    def origin(self, name: str) -> str:
        """`default`, the path of the file, or the name of the environment variable."""
        return self.effective[name].origin

    @property
    def application_id(self) -> str:
        return str(self.value("application.id"))

    @property
    def bootstrap_servers(self) -> str:
        return str(self.value("application.bootstrap_servers"))

    @property
    def registry_url(self) -> str:
        return str(self.value("schemas.registry_url"))

    @property
    def rules(self) -> RulesSettings:
        section = "rules."
        return RulesSettings(
            **{
                name.removeprefix(section): each.value
                for name, each in self.effective.items()
                if name.startswith(section)
            }
        )

    @property
    def client(self) -> dict[str, Any]:
        """The settings of `[client]`, as arguments of a `ConnectionFactory`."""
        section = "client."
        return {
            name.removeprefix(section): each.value for name, each in self.effective.items() if name.startswith(section)
        }

    @property
    def without_effect_on_workers(self) -> str:
        """One line on settings that were given and that a worker does not follow; empty: there are none (R-52)."""
        given = [
            name
            for name, each in self.effective.items()
            if name.startswith("client.") and each.origin != DEFAULT_ORIGIN
        ]
        return f"no effect on a worker, which waits for brokers by itself: {', '.join(given)}" if given else ""

    @property
    def is_trial(self) -> bool:
        """True in profile `test`: what strict order asks of a cluster is mere advice (S-22)."""
        return bool(self.value("application.profile") is Profile.TEST)

    @property
    def kafka(self) -> dict[str, str]:
        """Properties of `[kafka]`, as texts."""
        section = "kafka."
        return {
            name.removeprefix(section): each.value for name, each in self.effective.items() if name.startswith(section)
        }

    def command_signer(self) -> CommandSigner | None:
        """Signs the commands of this program; None: no key is configured. Raises ConfigError if its file is no good."""
        path = self.value("application.command_key")
        return read_signer(path) if path else None

    def policy(self, destination: str) -> DestinationPolicy:
        """Policy of a destination.

        Raises:
            ConfigError: No such destination is configured.
        """
        if destination not in self.destinations:
            raise ConfigError(
                f"destinations.{destination}", None, unknown("no such destination", destination, self.destinations)
            )
        return self.destinations[destination]

    def worker(self, worker_name: str) -> WorkerSettings:
        """The settings of one worker.

        Args:
            worker_name: Part of the worker's transactional id; two running workers must not share one (ER-09).
        """
        from uow.processor.kafka.worker_settings import WorkerSettings

        section = "worker."
        values = {
            name.removeprefix(section): each.value for name, each in self.effective.items() if name.startswith(section)
        }
        return WorkerSettings(
            application_id=self.application_id,
            bootstrap_servers=self.bootstrap_servers,
            kafka=self.kafka,
            worker_name=worker_name,
            registry_url=self.registry_url,
            destinations=dict(self.destinations),
            rules=self.rules,
            routers=dict(self.routers),
            is_trial=self.is_trial,
            overrides=self.overrides,
            command_signer=self.command_signer,
            **values,
        )


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Reads and checks the configuration.

    Args:
        path: The file; None reads `uow.toml` of the working directory if there is one.
        environ: Environment variables; None: those of the process.

    Raises:
        ConfigError: With every complaint at once.
    """
    reading = _Reading()
    if path is not None or DEFAULT_FILE.exists():
        reading.read_file(path or DEFAULT_FILE)
    reading.read_environment(os.environ if environ is None else environ)
    settings = reading.checked()
    if reading.complaints:
        raise ConfigError.many(reading.complaints)
    return settings


@dataclass(slots=True)
class _Reading:
    """A reading in progress: the values found so far, by section, and the complaints about them."""

    given: dict[str, dict[str, GivenValue]] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)
    overrides: list[OrderOverrideWarning] = field(default_factory=list)

    def complain(self, setting: str, value: object, rule: str, origin: str = "") -> None:
        """Records a complaint; for a value from the environment it names the variable, since the file does not contain it."""
        shown = Effective(setting, value, origin).shown
        self.complaints.append(
            Complaint(setting, shown, f"{rule} (from {origin})" if origin.upper().startswith(PREFIX) else rule)
        )

    # -- the file

    def read_file(self, path: Path) -> None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            self.complain("file", str(path), error.strerror or "cannot be read")
        except (ValueError, RecursionError) as error:
            self.complain("file", str(path), f"is not TOML: {error}")
        else:
            for section, body in document.items():
                self._read_section(section, body, str(path))

    def _read_section(self, section: str, body: Any, origin: str) -> None:
        if not self._is_section(section, body, origin):
            return
        if section in NAMED:
            for name, table in body.items():
                self._read_named(f"{section}.{name}", table, origin)
        else:
            pairs = _flat(body) if section == "kafka" else body
            self.given[section] = {key: GivenValue(value, origin) for key, value in pairs.items()}

    def _is_section(self, section: str, body: Any, origin: str) -> bool:
        if section in LATER:
            self.complain(section, NOT_SHOWN, "this section is not supported yet", origin)
        elif section not in SECTIONS:
            self.complain(
                section,
                NOT_SHOWN,
                unknown("no such section", section, SECTIONS),
                origin,
            )
        elif not isinstance(body, dict):
            self.complain(section, NOT_SHOWN, f"must be a section, [{section}]", origin)
        else:
            return True
        return False

    def _read_named(self, section: str, table: Any, origin: str) -> None:
        if not isinstance(table, dict):
            self.complain(section, NOT_SHOWN, f"must be a section, [{section}]", origin)
            return
        origin = f"{origin} [{section}]" if section.startswith("templates.") else origin
        keys = self.given.setdefault(section, {})
        for key, value in table.items():
            if isinstance(value, dict) and f"{DESTINATION}.{key}" not in LATER:
                kind, _, name = section.partition(".")
                rule = f'no such setting; a name with a dot is written [{kind}."{name}.{key}"]'
                self.complain(f"{section}.{key}", NOT_SHOWN, rule, origin)
            else:
                keys[key] = GivenValue(value, origin)

    # -- the environment

    def read_environment(self, environ: Mapping[str, str]) -> None:
        seen: dict[tuple[str, str], str] = {}
        for variable in sorted(environ):
            place = self._setting_of(variable)
            if place is None:
                continue
            if place in seen:
                self.complain(".".join(place), NOT_SHOWN, f"also given by {seen[place]}", variable)
            seen[place] = variable
            section, key = place
            self.given.setdefault(section, {})[key] = GivenValue(environ[variable], variable)

    def _setting_of(self, variable: str) -> tuple[str, str] | None:
        """Section and key that a variable names; None when it is not a setting of `uow`, or a wrong one."""
        if not variable.upper().startswith(PREFIX):
            return None
        text = variable[len(PREFIX) :].lower()
        if DELIMITER not in text:
            self._complain_about_single_underscore(variable, text)
            return None
        section, _, rest = text.partition(DELIMITER)
        if not self._is_section(section, {}, variable):
            return None
        if section == "kafka":
            return section, rest if rest in WITH_UNDERSCORE else rest.replace("_", ".")
        if section not in NAMED:
            return section, rest
        name, _, key = rest.rpartition(DELIMITER)
        if not name:
            rule = f"a variable names section, name and setting: UOW_{section.upper()}__NAME__SETTING"
            self.complain(f"{section}.{rest}", NOT_SHOWN, rule, variable)
            return None
        return f"{section}.{self._known_name(section, name, variable)}", key

    def _complain_about_single_underscore(self, variable: str, text: str) -> None:
        for setting in SETTINGS:
            if text == setting.name.replace(".", "_"):
                wanted = PREFIX + setting.name.replace(".", DELIMITER).upper()
                self.complain(variable, NOT_SHOWN, f"no such variable; did you mean {wanted}?")

    def _known_name(self, section: str, name: str, variable: str) -> str:
        """The destination or template that a variable means: the one in the file whose name reads the same, else a new one."""
        known = self._names(section)
        if name in known:
            return name
        alike = [each for each in known if _in_environment(each) == _in_environment(name)]
        if len(alike) > 1:
            self.complain(
                f"{section}.{name}", NOT_SHOWN, f"may mean {' or '.join(alike)}: set it in the file", variable
            )
        return alike[0] if alike else name

    def _names(self, section: str) -> list[str]:
        return [each.removeprefix(f"{section}.") for each in self.given if each.startswith(f"{section}.")]

    # -- checking

    def checked(self) -> Settings:
        """Checks all given values against the declarations and fills in the defaults."""
        effective: dict[str, Effective] = {}
        for section in ("application", "kafka", "client", "worker", "schemas", "rules"):
            given = self.given.get(section, {})
            found = self._kafka(given) if section == "kafka" else self._section(section, section, given)
            effective.update((each.name, each) for each in found)
        destinations = {}
        inherited = set()
        for name in sorted(self._names("destinations")):
            section = f"destinations.{name}"
            self._check_name(name)
            given = dict(self.given[section])
            template = given.pop("template", None)
            if template is not None:
                inherited.add(str(template.value))
                given = self._template(section, template) | given
            self._check_required(section, given)
            found = self._in_order(name, self._section(section, DESTINATION, given))
            self._check_corrections({each.name.rpartition(".")[2]: each for each in found})
            self._check_window({each.name.rpartition(".")[2]: each for each in found})
            self._check_families({each.name.rpartition(".")[2]: each for each in found}["accept_aliases"])
            effective.update((each.name, each) for each in found)
            destinations[name] = DestinationPolicy(**{each.name.rpartition(".")[2]: each.value for each in found})
        for name in sorted({*self._names("templates")} - inherited):  # not yet checked as part of a destination
            self._section(f"templates.{name}", DESTINATION, self.given[f"templates.{name}"])
        routers = {}
        for name in sorted(self._names("routers")):
            found = self._section(f"routers.{name}", ROUTER, self.given[f"routers.{name}"])
            effective.update((each.name, each) for each in found)
            routers[name] = RouterSettings(**{each.name.rpartition(".")[2]: each.value for each in found})
        self._check_together(effective, destinations)
        self._check_routers(effective, routers, destinations)
        warnings = [*map(str, self.overrides), *_warnings(destinations)]
        return Settings(
            MappingProxyType(effective),
            MappingProxyType(destinations),
            tuple(warnings),
            MappingProxyType(routers),
            tuple(self.overrides),
        )

    def _in_order(self, name: str, found: list[Effective]) -> list[Effective]:
        """The settings of a destination as strict order changes them; without it, complaints about those that need it (S-27)."""
        given = {each.name.rpartition(".")[2]: each for each in found}
        if not given["strict_order"].value:
            for key in ONE_AT_A_TIME:
                if given[key].value != STANDARD[key]:
                    rule = f"only {_plain(STANDARD[key])} is supported yet".lower()
                    self.complain(given[key].name, given[key].value, rule, given[key].origin)
            return found
        for key, value in STRICT_DEFAULTS.items():
            if given[key].origin == DEFAULT_ORIGIN:
                given[key] = Effective(given[key].name, value, DEFAULT_ORIGIN)
        for each in overrides(name, {key: each.value for key, each in given.items()}):
            self.overrides.append(each)
            origin = f"strict_order, in place of {_plain(each.requested)} from {given[each.key].origin}"
            given[each.key] = Effective(given[each.key].name, each.effective, origin)
        return [*given.values()]

    def _check_corrections(self, given: Mapping[str, Effective]) -> None:
        """A corrected unit comes out of turn, and is made of components that the worker has (B-205)."""
        late = given["late_policy"]
        if late.value is not LatePolicy.AMEND:
            return
        for key, value, text in (
            ("strict_order", True, "strict_order = true"),
            ("routing", Routing.PATH, 'routing = "path"'),
            ("shape", Shape.REFERENCE, 'shape = "reference"'),
            ("oversize", Oversize.REFERENCE, 'oversize = "reference"'),
        ):
            if given[key].value == value:
                self.complain(late.name, late.value, f"units cannot be corrected with {text}", late.origin)

    def _check_window(self, given: Mapping[str, Effective]) -> None:
        """Copies of a signed command come within twice its window, and its id must be known so long, whatever its key signs meanwhile."""
        window, most = given["command_window_ms"], given["closed_retention_ms"].value // 2
        if given["command_keys"].value and window.value > most:
            rule = (
                f"must be at most half of closed_retention_ms, {most}: so long the id of a signed command is remembered"
            )
            self.complain(window.name, window.value, rule, window.origin)
        count = given["closed_max_groups"]
        if given["command_keys"].value and count.value < LEAST_COMMANDS:
            rule = f"must be at least {LEAST_COMMANDS}: so many ids are remembered of each key, and a copy of an older command would be obeyed"
            self.complain(count.name, count.value, rule, count.origin)

    def _check_families(self, families: Effective) -> None:
        """The same header cannot count from 0 and from 1 (W-17)."""
        if {AliasFamily.NIFI, AliasFamily.NIFI_FROM_1} <= families.value:
            rule = "nifi counts from 0 and nifi_from_1 from 1: choose the one of the processor that writes"
            self.complain(families.name, sorted(families.value), rule, families.origin)

    def _check_required(self, section: str, given: Mapping[str, GivenValue]) -> None:
        if any(f"{each.setting}.".startswith(f"{section}.") for each in self.complaints):
            return  # it is no destination, or its template is not there: whatever it lacks may come of that
        for setting in SETTINGS:
            if setting.is_required and setting.key not in given:
                self.complain(f"{section}.{setting.key}", "", f"must be given: {setting.text}")

    def _template(self, section: str, template: GivenValue) -> dict[str, GivenValue]:
        """The values that a destination inherits, by key (W-67)."""
        name = f"templates.{template.value}"
        if name not in self.given:
            rule = unknown("no such template", str(template.value), self._names("templates"))
            self.complain(f"{section}.template", template.value, rule, template.origin)
        return dict(self.given.get(name, {}))

    def _section(self, section: str, declared: str, given: Mapping[str, GivenValue]) -> list[Effective]:
        settings = {setting.key: setting for setting in SETTINGS if setting.section == declared}
        for key, each in given.items():
            if f"{declared}.{key}" in LATER:
                self.complain(f"{section}.{key}", NOT_SHOWN, "not supported yet", each.origin)
            elif key not in settings:
                self.complain(f"{section}.{key}", NOT_SHOWN, unknown("no such setting", key, settings), each.origin)
        return [self._effective(f"{section}.{key}", setting, given.get(key)) for key, setting in settings.items()]

    def _effective(self, name: str, setting: Setting, given: GivenValue | None) -> Effective:
        default = Effective(name, setting.default, DEFAULT_ORIGIN)
        if given is None:
            return default
        try:
            value = parsed(setting.kind, setting.choices, given.value)
        except WrongValue as error:
            self.complain(name, given.value, str(error), given.origin)
            return default
        if not setting.bound.holds(value):
            reason = f": {setting.reason}" if setting.reason else ""
            self.complain(name, given.value, f"must be {setting.bound.text}{reason}", given.origin)
            return default
        return Effective(name, value, given.origin)

    def _kafka(self, given: Mapping[str, GivenValue]) -> list[Effective]:
        found = []
        for key, each in given.items():
            value = str(each.value).lower() if isinstance(each.value, bool) else str(each.value)
            rule = _KAFKA_RULES.get(key)
            if isinstance(each.value, list | dict) or not isinstance(each.value, str | int | float):
                self.complain(f"kafka.{key}", each.value, "must be a text or a number", each.origin)
            elif rule is not None and value.lower() not in rule.allowed:
                self.complain(f"kafka.{key}", each.value, rule.rule, each.origin)
            else:
                found.append(Effective(f"kafka.{key}", value, each.origin))
        return found

    def _check_name(self, name: str) -> None:
        if not is_legal_name(name):
            self.complain(f"destinations.{name}", name, f"a destination's name is part of topic names: {LEGAL_NAME}")

    def _check_together(
        self, effective: Mapping[str, Effective], destinations: Mapping[str, DestinationPolicy]
    ) -> None:
        """Rules over more than one setting."""
        interval, timeout = effective["worker.commit_interval_ms"], effective["worker.transaction_timeout_ms"]
        if interval.value * 2 > timeout.value:
            rule = f"must be at most half of worker.transaction_timeout_ms, {timeout.value}"
            self.complain(interval.name, interval.value, rule, interval.origin)
        socket = effective.get("kafka.socket.timeout.ms")
        if socket is not None and not _is_at_most(socket.value, timeout.value):
            rule = f"must be at most worker.transaction_timeout_ms, {timeout.value}: librdkafka refuses more"
            self.complain(socket.name, socket.value, rule, socket.origin)
        for name, route, rule in route_complaints(effective["application.id"].value, destinations):
            routes = effective[f"destinations.{name}.routes"]
            self.complain(routes.name, str(route), rule, routes.origin)
        seen: dict[str, str] = {}
        for name, policy in destinations.items():
            for prefix in policy.mirror_prefixes:
                if prefix and name.startswith(prefix):
                    rule = f"topics with the prefix {prefix!r} are a mirror: the cluster it is copied from delivers each unit already"
                    self.complain(f"destinations.{name}", name, rule)
            other = seen.setdefault(name.replace(".", "_"), name)
            if other != name:
                self.complain(
                    f"destinations.{name}",
                    name,
                    f"Kafka refuses topics that differ from those of {other!r} only in '.' and '_'",
                )

    def _check_routers(
        self,
        effective: Mapping[str, Effective],
        routers: Mapping[str, RouterSettings],
        destinations: Mapping[str, DestinationPolicy],
    ) -> None:
        if routers and not effective["rules.source"].value:
            self.complain("rules.source", "", "routers need rules: a database URL or the path of a TOML file")
        application = effective["application.id"].value
        own = {
            topic: name
            for name in destinations
            for names in [DestinationTopics(application, name)]
            for topic in (names.components, names.commands, names.groups_changelog, names.closed_changelog)
        }
        readers: dict[str, str] = {}
        silence = effective["worker.session_timeout_ms"].value + effective["worker.transaction_timeout_ms"].value
        for name, router in routers.items():
            stall, given = effective[f"routers.{name}.input_stall_ms"], effective[f"routers.{name}.inputs"]
            if self.given[f"routers.{name}"].get("input_stall_ms") and router.input_stall_ms <= silence:
                rule = f"must be above worker.session_timeout_ms and worker.transaction_timeout_ms together, {silence}: for so long nobody routes when a worker dies"
                self.complain(stall.name, stall.value, rule, stall.origin)
            if not router.inputs and not self.given[f"routers.{name}"].get("inputs", _NOTHING).value:
                self.complain(given.name, [], "must name at least one topic", given.origin)
            for topic in router.inputs:
                if topic in own:
                    rule = f"{topic!r} is read by the workers of destination {own[topic]!r} already"
                    self.complain(given.name, list(router.inputs), rule, given.origin)
                elif topic in readers:
                    rule = f"{topic!r} is an input of router {readers[topic]!r} already, and a record is routed once"
                    self.complain(given.name, list(router.inputs), rule, given.origin)
                readers[topic] = name


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The property names with dots that nested tables mean: `security.protocol = ...` without quotes is a table in a table to TOML."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _is_at_most(text: str, limit: int) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= limit


def _in_environment(name: str) -> str:
    """A destination's name as an environment variable spells it."""
    return name.lower().replace(".", "_").replace("-", "_")


def _warnings(destinations: Mapping[str, DestinationPolicy]) -> Iterable[str]:
    for name, policy in destinations.items():
        yield from _order_warnings(name, policy)
        if not policy.command_keys and policy.unsigned_commands != STANDARD["unsigned_commands"]:
            yield f"destinations.{name}: unsigned_commands has no effect without command_keys"
        limit = policy.incomplete_expiration_ms
        if policy.handling_policy is HandlingPolicy.PASS_THROUGH:
            if limit != NEVER_MS or policy.idle_expiration_ms != NEVER_MS:
                yield f"destinations.{name}: expiration limits have no effect under pass_through"
            if policy.routes:
                yield f"destinations.{name}: routes have no effect under pass_through: there are no units"
        elif limit == NEVER_MS and policy.idle_expiration_ms == NEVER_MS:
            yield f"destinations.{name}: incomplete_expiration_ms = -1: groups may wait for ever"
            if policy.refers:
                yield f"destinations.{name}: a component may be deleted before the unit that refers to it is delivered"


def _order_warnings(name: str, policy: DestinationPolicy) -> Iterable[str]:
    if policy.strict_order:
        if policy.exception_destination is ExceptionDestination.ERRORS:
            yield f"destinations.{name}: exception_destination = errors: a unit that is moved leaves a gap in the order, which is recorded"
        return
    for key in sorted(ONLY_STRICT):
        if getattr(policy, key) != STANDARD[key]:
            yield f"destinations.{name}: {key} has no effect without strict_order"
