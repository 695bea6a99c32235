"""What differs between two configurations, and what of it a running node can take.

A setting has the name that errors give it: `topics.retention_ms`, `plugins.mqtt.slow_ms`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.settings import can_reload
from lakemq.broker_core.configuration.config_words import complaint

Model = TypeVar("Model", bound=BaseModel)
_SECRET_WORDS: Final = ("password", "secret", "token", "key", "credential")
_NO_SECRETS: Final = ("key_file", "tls_key", "secret_file")
"""Settings with such a word that name a file."""


class Change(NamedTuple):
    """A setting that is to have another value."""

    setting: str
    before: Any
    after: Any
    restart: bool
    """It is used from the next start on."""


class Merge(NamedTuple):
    """A section of a running node, and what became of each change."""

    section: Any
    """With every change that the node can take while it runs, and no other."""
    changes: list[Change]


def merged(name: str, running: Model, wanted: Model, *, takes: bool = True) -> Merge:
    """`running`, with what is reloadable from `wanted`. `takes`: whether who uses the section can
    change it. Raises ConfigError for what does not go together with settings that stay."""
    changes = [
        Change(
            f"{name}.{field}", getattr(running, field), getattr(wanted, field),
            restart=not (
                takes and can_reload(info, getattr(running, field), getattr(wanted, field))
            ),
        )
        for field, info in type(running).model_fields.items()
        if getattr(running, field) != getattr(wanted, field)
    ]  # fmt: skip
    now = [each for each in changes if not each.restart]
    if not now:
        return Merge(running, changes)
    values = {field: getattr(running, field) for field in type(running).model_fields}
    values |= {each.setting.removeprefix(f"{name}."): each.after for each in now}
    try:
        return Merge(type(running).model_validate(values), changes)
    except ValidationError as error:
        found = complaint(error.errors()[0], type(running))
        stay = ", ".join(each.setting for each in changes if each.restart)
        raise ConfigError(f"{name}: {found}, as long as {stay} is as it was: restart") from None


def masked(settings: BaseModel) -> dict[str, object]:
    """A section without what is secret in it, for JSON."""
    found = _masked(settings.model_dump(mode="json"))
    assert isinstance(found, dict)
    return found


def _masked(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {key: _masked(each, str(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [_masked(each, name) for each in value]
    secret = name not in _NO_SECRETS and any(word in name.lower() for word in _SECRET_WORDS)
    return "***" if secret and isinstance(value, str) and value else value
