"""Base of every plugin's settings: strict, frozen, each field with a description.

`docs/configuration.md` is generated from these classes, so a field without a description fails a
test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

T = TypeVar("T")


class _Mark:
    """Its one instance, in the metadata of a field, says that a reload changes the setting."""


_RELOADABLE: Final = _Mark()
Reloadable = Annotated[T, _RELOADABLE]
"""A setting that a running node can change: `retention_ms: Reloadable[int] = 0`. Who uses it is
`Reconfigurable`; all other settings need a restart."""


@dataclass(frozen=True)
class ReloadableIf:
    """Marks a setting of which a running node can make some changes, and no other:
    `Annotated[str, ReloadableIf(...)]`."""

    can: Callable[[Any, Any], bool]
    """Of (before, after), which differ."""
    says: str
    """When, in two or three words, for the table of settings."""


def _both(before: object, after: object) -> bool:
    return bool(before) and bool(after)


ReloadableWhileOn = Annotated[T, ReloadableIf(_both, "while on")]
"""A setting that turns something off where it is empty or 0. A running node can change it, and turn
that neither on nor off."""


def is_reloadable(info: FieldInfo) -> bool:
    """Whether the field is marked as `Reloadable`: whatever it is changed to."""
    return _RELOADABLE in info.metadata


def can_reload(info: FieldInfo, before: Any, after: Any) -> bool:
    """Whether a running node can make that change of the field."""
    marks = (each for each in info.metadata if isinstance(each, ReloadableIf))
    return is_reloadable(info) or any(each.can(before, after) for each in marks)


Port = Annotated[int, Field(ge=0, le=65535)]
"""TCP port; 0 lets the system choose one."""

Unlimited = Annotated[int, BeforeValidator(lambda value: -1 if value == "none" else value)]
"""A limit; -1 or "none": without."""


class Section(BaseModel):
    """A section of the TOML file: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PluginSettings(Section):
    """A plugin's section, `[plugins.<name>]`. A plugin that has a section is on."""

    enabled: bool = True
    """Whether the plugin is on."""


@runtime_checkable
class Reconfigurable(Protocol):
    """What a plugin's hook returned (a listener, a storage engine, ...) and that takes its settings
    while it runs."""

    def reconfigure(self, settings: Any) -> Callable[[], None]:
        """Check the plugin's section as it shall be from now on; the answer puts it into use.

        `settings` is of the class that `register_settings` names. Only what is `Reloadable` in it
        differs from what is in use. Nothing changes before the answer is called, which is when all
        parts of the node have agreed; it must not fail. Both run on the event loop, which they do
        not hold. Raises ConfigError: the node then stays as it is.
        """
