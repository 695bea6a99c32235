"""One TOML file (and `LAKEMQ_...` variables) -> validated sections. Strict: a key nobody knows is
an error that names file, line and the nearest known key.

A variable overrides one setting: `LAKEMQ_NODE__DATA_DIR=/var/lib/lakemq` or
`LAKEMQ_PLUGINS__MQTT__PORT=1884`: path in capitals, its parts joined by two underscores, the value
as TOML has it (text needs no quotes). Variables without two underscores are not settings.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from broker_core.api.errors import ConfigError
from broker_core.security.settings import SecuritySettings
from broker_core.settings import (
    AdminSettings,
    NodeSettings,
    ScheduleSettings,
    TelemetrySettings,
    TopicSettings,
    TransactionSettings,
)
from broker_core.toml_lines import line_of
from meta_service.api.settings import MetaSettings

ENV_PREFIX: Final = "LAKEMQ_"
SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "node": NodeSettings,
    "meta": MetaSettings,
    "topics": TopicSettings,
    "transactions": TransactionSettings,
    "schedules": ScheduleSettings,
    "admin": AdminSettings,
    "telemetry": TelemetrySettings,
    "security": SecuritySettings,
}
"""Sections that are not a plugin's, in the order in which they are documented."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class ConfigSource:
    """The configuration as it was written: text for line numbers, parsed data, variables."""

    file: str
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

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

    def _overrides(self, path: tuple[str, ...]) -> dict[str, tuple[str, str]]:
        """Setting -> (variable, text) for one section."""
        prefix = ENV_PREFIX + "".join(f"{_env_name(part)}__" for part in path)
        return {
            name.removeprefix(prefix).lower(): (name, text)
            for name, text in self.variables.items()
            if name.startswith(prefix) and "__" not in name.removeprefix(prefix)
        }

    def section(self, path: tuple[str, ...], model: type[Model]) -> Model:
        """Validate one section. Raises ConfigError for the first thing that is wrong."""
        written: Any = self.data
        for part in path:
            written = written.get(part, {}) if isinstance(written, Mapping) else {}
        if not isinstance(written, Mapping):
            raise self.error(path, f"{'.'.join(path)} is a table, [{'.'.join(path)}]")
        values = dict(written)
        overrides = self._overrides(path)
        for name, (_, text) in overrides.items():
            values[name] = _env_value(text, model, name)
        try:
            return model.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = _written_path(values, first["loc"])
            if where and where[0] in overrides:
                variable = overrides[str(where[0])][0]
                raise ConfigError(f"{variable}: {_complaint(first, model)}") from None
            raise self.error((*path, *where), _complaint(first, model)) from None

    def error(self, path: tuple[str | int, ...], complaint: str) -> ConfigError:
        """`file:line: a.b.c: complaint`."""
        line = line_of(self.text, path)
        name = ".".join(str(part) for part in path)
        return ConfigError(f"{self.file}{f':{line}' if line else ''}: {name}: {complaint}")


@dataclass(frozen=True)
class Config:
    """The validated configuration; plugins' sections stay in `source` until they are loaded."""

    node: NodeSettings
    meta: MetaSettings
    topics: TopicSettings
    transactions: TransactionSettings
    schedules: ScheduleSettings
    admin: AdminSettings
    telemetry: TelemetrySettings
    security: SecuritySettings
    source: ConfigSource


def load_config(path: Path | None, environment: Mapping[str, str]) -> Config:
    """Read, parse, validate. `path` None: defaults. Raises ConfigError."""
    variables = {
        name: text
        for name, text in environment.items()
        if name.startswith(ENV_PREFIX) and "__" in name
    }
    if path is None:
        source = ConfigSource("(defaults)", variables=variables)
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
        source = parse_config(str(path), text, variables)
    _check_top(source)
    sections: dict[str, Any] = {
        name: source.section((name,), model) for name, model in SECTIONS.items()
    }
    return Config(**sections, source=source)


def parse_config(name: str, text: str, variables: Mapping[str, str]) -> ConfigSource:
    try:
        return ConfigSource(name, text, tomllib.loads(text), variables)
    except RecursionError:
        raise ConfigError(f"{name}: not TOML: nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, and numbers of too many digits
        raise ConfigError(f"{name}: not TOML: {error}") from None


def _check_top(source: ConfigSource) -> None:
    known = [*SECTIONS, "plugins"]
    for name in source.data:
        if name not in known:
            raise source.error((name,), f"unknown section{_nearest(name, known)}")
    if not isinstance(source.data.get("plugins", {}), Mapping):
        raise source.error(("plugins",), "plugins is a table of tables, [plugins.<name>]")
    for variable in source.variables:
        first = variable.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if first not in known:
            raise ConfigError(f"{variable}: unknown section {first}{_nearest(first, known)}")


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


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"


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


def _complaint(error: Any, model: type[BaseModel]) -> str:
    """pydantic's finding in our words."""
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        return f"unknown setting{_nearest(name, _fields_at(model, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return "this setting is required"
    if error["type"] == "union_tag_not_found":
        return "kind is missing"
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        known = context["expected_tags"].replace("'", "").split(", ")
        return f"unknown kind {context['tag']!r}{_nearest(context['tag'], known)}"
    message = error["msg"].removeprefix("Value error, ")
    said = f"{message[0].lower()}{message[1:]}"
    if isinstance(error["input"], Mapping):  # all of a table says nothing, and may hold a secret
        return said
    return f"{said}, not {error['input']!r}"


def _fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Names of the settings that are known at `path` below `model`."""
    models = [model]
    for part in path:
        if isinstance(part, int):
            continue
        of_kind = [each for each in models if part in _kinds(each)]
        models = of_kind or [
            inner
            for each in models
            if part in each.model_fields
            for inner in models_in(each.model_fields[part].annotation)
        ]
    return [name for each in models or [model] for name in each.model_fields]


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    """What `kind` says in tables of that model, where it tells several apart."""
    return get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models of the tables that a setting of that type holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in models_in(each)]
