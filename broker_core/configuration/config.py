"""One TOML file (and `LAKEMQ_...` variables) -> validated sections. Strict: an unknown key is
an error that names file, line and the nearest known key.

A variable overrides one setting: `LAKEMQ_NODE__DATA_DIR=/var/lib/lakemq` or
`LAKEMQ_PLUGINS__MQTT__PORT=1884`: path in capitals, its parts joined by two underscores, the value
as TOML has it (text needs no quotes). Variables without two underscores are not settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from lakemq.broker_core.api.errors import ConfigError, LakeMQError
from lakemq.broker_core.configuration.config_words import complaint, nearest
from lakemq.broker_core.configuration.settings import (
    ClusterSettings,
    InterceptorSettings,
    NodeSettings,
    ScheduleSettings,
    TelemetrySettings,
    TopicSettings,
    TransactionSettings,
)
from lakemq.broker_core.configuration.toml_lines import line_of
from lakemq.broker_core.security.settings import SecuritySettings
from lakemq.meta_service.api.settings import MetaSettings

ENV_PREFIX: Final = "LAKEMQ_"
SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "node": NodeSettings,
    "meta": MetaSettings,
    "cluster": ClusterSettings,
    "topics": TopicSettings,
    "transactions": TransactionSettings,
    "schedules": ScheduleSettings,
    "interceptors": InterceptorSettings,
    "telemetry": TelemetrySettings,
    "security": SecuritySettings,
}
"""Sections that are not a plugin's, in the order in which they are documented."""

CLUSTER: Final = "cluster"
"""Scope of settings that are kept for all nodes; for one it is `node=<id>`."""
_DEFAULTS: Final = "(defaults)"
_SHORT: Final = "admin"
"""A plugin whose section may be written without `plugins.` before it, as it once was."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Kept:
    """A dynamic setting, which the MetaService keeps."""

    scope: str
    setting: str
    """Like `topics.retention_ms` or `plugins.mqtt.slow_ms`."""
    value: Any

    def path(self) -> tuple[tuple[str, ...], str]:
        """(path of the section, name in it)."""
        *path, name = self.setting.split(".")
        return tuple(path), name


@dataclass(frozen=True)
class ConfigSource:
    """The configuration as it was written: text for line numbers, parsed data, variables."""

    file: str
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    short: bool = False
    """The file has `[admin]` in place of `[plugins.admin]`."""
    kept: tuple[Kept, ...] = ()
    """Dynamic settings, which come before all else; of those of one name the last counts."""

    def has(self, path: tuple[str, ...]) -> bool:
        """Whether that section is written, in the file or by a variable."""
        at: Any = self.data
        for part in path:
            if not isinstance(at, Mapping) or part not in at:
                break
            at = at[part]
        else:
            return True
        return bool(self._overrides(path))

    def origin(self, path: tuple[str, ...], setting: str) -> str:
        """Where a setting of the section `path` has its value from: `cluster`, `node=<id>`,
        `variable`, `file` or `default`."""
        for kept in reversed(self.kept):
            if kept.path() == (path, setting):
                return kept.scope
        if setting in self._overrides(path):
            return "variable"
        return "file" if self.has((*path, setting)) else "default"

    def again(self) -> ConfigSource:
        """The file as it is now. Raises ConfigError."""
        return read_source(None if self.file == _DEFAULTS else Path(self.file), self.variables)

    def _overrides(self, path: tuple[str, ...]) -> dict[str, tuple[str, str]]:
        """Setting -> (variable, text) for one section."""
        prefix = ENV_PREFIX + "".join(f"{_env_name(part)}__" for part in path)
        return {
            name.removeprefix(prefix).lower(): (name, text)
            for name, text in self.variables.items()
            if name.startswith(prefix) and "__" not in name.removeprefix(prefix)
        }

    def section(self, path: tuple[str, ...], model: type[Model]) -> Model:
        """Validate one section. Raises ConfigError with a line for each thing that is wrong."""
        written: Any = self.data
        for part in path:
            written = written.get(part, {}) if isinstance(written, Mapping) else {}
        if not isinstance(written, Mapping):
            raise self.error(path, f"{'.'.join(path)} is a table, [{'.'.join(path)}]")
        values = dict(written)
        overrides = self._overrides(path)
        for name, (_, text) in overrides.items():
            values[name] = _env_value(text, model, name)
        dynamic = {kept.path()[1]: kept for kept in self.kept if kept.path()[0] == path}
        values |= {name: kept.value for name, kept in dynamic.items()}
        try:
            return model.model_validate(values)
        except ValidationError as error:
            raise joined(
                [
                    self._found(path, values, overrides, dynamic, each, model)
                    for each in error.errors()
                ]
            ) from None

    def _found(
        self,
        path: tuple[str, ...],
        values: Mapping[str, Any],
        overrides: Mapping[str, tuple[str, str]],
        dynamic: Mapping[str, Kept],
        found: Any,
        model: type[BaseModel],
    ) -> ConfigError:
        """pydantic's finding, with its place."""
        where = _written_path(values, found["loc"])
        if where and where[0] in dynamic:
            kept = dynamic[str(where[0])]
            return ConfigError(f"{kept.setting}, set for {kept.scope}: {complaint(found, model)}")
        if where and where[0] in overrides:
            variable = overrides[str(where[0])][0]
            return ConfigError(f"{variable}: {complaint(found, model)}")
        return self.error((*path, *where), complaint(found, model))

    def error(self, path: tuple[str | int, ...], complaint: str) -> ConfigError:
        """`file:line: a.b.c: complaint`."""
        if self.short and path[:2] == ("plugins", _SHORT):
            path = path[1:]
        line = line_of(self.text, path)
        name = ".".join(str(part) for part in path)
        return ConfigError(f"{self.file}{f':{line}' if line else ''}: {name}: {complaint}")


@dataclass(frozen=True)
class Config:
    """The validated configuration; plugins' sections stay in `source` until they are loaded."""

    node: NodeSettings
    meta: MetaSettings
    cluster: ClusterSettings
    topics: TopicSettings
    transactions: TransactionSettings
    schedules: ScheduleSettings
    interceptors: InterceptorSettings
    telemetry: TelemetrySettings
    security: SecuritySettings
    source: ConfigSource


def load_config(path: Path | None, environment: Mapping[str, str]) -> Config:
    """Read, parse, validate. `path` None: defaults. Raises ConfigError with a line for each thing
    that is wrong."""
    return load_source(read_source(path, environment))


def load_source(source: ConfigSource) -> Config:
    """Validate. Raises ConfigError likewise."""
    config, errors = checked_config(source)
    if config is None:
        raise joined(errors)
    return config


def joined(errors: Sequence[LakeMQError]) -> ConfigError:
    """One error, a line for each."""
    return ConfigError("\n".join(dict.fromkeys(map(str, errors))))


def checked_config(source: ConfigSource) -> tuple[Config | None, list[ConfigError]]:
    """The sections that are no plugin's, None when something is wrong, and all that is wrong."""
    errors = _check_top(source)
    sections: dict[str, Any] = {}
    for name, model in SECTIONS.items():
        try:
            sections[name] = source.section((name,), model)
        except ConfigError as error:
            errors.append(error)
    return (None if errors else Config(**sections, source=source)), errors


def read_source(path: Path | None, environment: Mapping[str, str]) -> ConfigSource:
    """Read and validate the file; `path` None: defaults. Raises ConfigError."""
    variables = {
        _long_name(name): text
        for name, text in environment.items()
        if name.startswith(ENV_PREFIX) and "__" in name
    }
    if path is None:
        return ConfigSource(_DEFAULTS, variables=variables)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    return parse_config(str(path), text, variables)


def parse_config(name: str, text: str, variables: Mapping[str, str]) -> ConfigSource:
    """The configuration in a text; `name` is that of the file, for errors. Raises ConfigError."""
    try:
        data, short = _with_plugins(name, tomllib.loads(text))
        return ConfigSource(name, text, data, variables, short)
    except RecursionError:
        raise ConfigError(f"{name}: not TOML: nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, and numbers of too many digits
        raise ConfigError(f"{name}: not TOML: {error}") from None


def _with_plugins(name: str, data: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """`[admin]` in its place among the plugins' sections, and whether there is one. Raises
    ConfigError."""
    plugins = data.get("plugins", {})
    if _SHORT not in data or not isinstance(plugins, dict):
        return data, False
    if _SHORT in plugins:
        raise ConfigError(f"{name}: [admin] is [plugins.admin], which is written too: join them")
    rest = {key: value for key, value in data.items() if key != _SHORT}
    return {**rest, "plugins": {**plugins, _SHORT: data[_SHORT]}}, True


def _long_name(variable: str) -> str:
    """The name of a variable of `[admin]`, as one of `[plugins.admin]`."""
    own = f"{ENV_PREFIX}{_SHORT.upper()}__"
    if variable.startswith(own):
        return f"{ENV_PREFIX}PLUGINS__{variable.removeprefix(ENV_PREFIX)}"
    return variable


def _check_top(source: ConfigSource) -> list[ConfigError]:
    known = [*SECTIONS, "plugins"]
    errors = [
        source.error((name,), f"unknown section{nearest(name, known)}")
        for name in source.data
        if name not in known
    ]
    if not isinstance(source.data.get("plugins", {}), Mapping):
        errors.append(source.error(("plugins",), "plugins is a table of tables, [plugins.<name>]"))
    for variable in source.variables:
        first = variable.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if first not in known:
            errors.append(
                ConfigError(f"{variable}: unknown section {first}{nearest(first, known)}")
            )
    return errors


def _env_name(part: str) -> str:
    return part.upper().replace("-", "_")


def _env_value(text: str, model: type[BaseModel], name: str) -> Any:
    """The variable's text as the setting's type wants it: text stays text, the rest is TOML."""
    annotation = model.model_fields[name].annotation if name in model.model_fields else None
    choices = get_args(annotation)
    if annotation is str or (choices and all(isinstance(choice, str) for choice in choices)):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _written_path(values: Any, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """pydantic's place of an error without the kinds that it names between the keys."""
    at, written = values, list[str | int]()
    for part in path:
        if isinstance(at, Mapping) and part not in at and at.get("kind") == part:
            continue
        written.append(part)
        if isinstance(at, Mapping):
            at = at.get(part)
        elif isinstance(at, list) and isinstance(part, int):
            at = at[part]
    return tuple(written)
