"""Base of every plugin's settings: strict, frozen, each field with a description.

`docs/configuration.md` is generated from these classes, so a field without a description fails a
test.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Port = Annotated[int, Field(ge=0, le=65535)]
"""TCP port; 0 lets the system choose one."""

Unlimited = Annotated[int, BeforeValidator(lambda value: -1 if value == "none" else value)]
"""A limit; -1 or "none": without."""


class Section(BaseModel):
    """A section of the TOML file: unknown keys and wrong types are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class PluginSettings(Section):
    """A plugin's section, `[plugins.<name>]`. A plugin that has a section is on."""

    enabled: bool = True
    """Whether the plugin is on."""
