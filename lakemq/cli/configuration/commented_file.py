"""A configuration file with every setting, its default and what it does, from the settings classes.

Settings are `#name = value`, all else is `# text`: without the `#` of each setting the file says
what no file says too.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lakemq.broker_core.api.settings import ReloadableIf, is_reloadable
from lakemq.broker_core.configuration.config import SECTIONS, ConfigSource
from lakemq.broker_core.configuration.config_words import models_in
from lakemq.broker_core.configuration.setting_types import limits_of, type_name
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.plugins.admin.api.descriptions import texts_of

_WIDTH: Final = 98
_HEAD: Final = """\
# The configuration of a LakeMQ node: every setting with its default. Take away the '#' before a
# setting to change it; what stays as it is follows the defaults of later versions.
#
#   lakemq config check -c lakemq.toml    says what is wrong, without a start
#   lakemq start -c lakemq.toml
#
# Variables come before the file: LAKEMQ_NODE__DATA_DIR=/var/lib/lakemq sets node.data_dir.
#
# In brackets: what a setting takes. 'reloadable': a running node uses a changed value after SIGHUP
# or 'lakemq config reload'; the others need a restart. Units are in the names: _ms milliseconds,
# _s seconds, _bytes bytes.
"""


def commented_file(*, built_in: bool = False) -> str:
    """TOML. Of plugins those that are installed, or with `built_in` those that come with LakeMQ;
    their sections switch on what is off by itself, so that those of plugins that are off are
    comments."""
    host = PluginHost(ConfigSource("(defaults)"))
    host.load(strict=False, disabled_too=True)
    on = {plugin.name for plugin in host.enabled()}
    parts = [_HEAD]
    parts += [_section(name, model, on=True) for name, model in SECTIONS.items()]
    for name, model in sorted(host.settings_models().items()):
        if built_in and not model.__module__.startswith("lakemq.plugins."):
            continue
        parts.append(_section(f"plugins.{name}", model, on=name in on))
    return "\n".join(parts)


def _section(name: str, model: type[BaseModel], *, on: bool) -> str:
    lines = ["", *_comment(model.__doc__ or ""), f"[{name}]" if on else f"#[{name}]"]
    texts = texts_of(model)
    for field, info in model.model_fields.items():
        said = _said(texts.get(field, ""), info, _reload(info))
        lines += ["", *_comment(said), *_setting(field, info)]
        for inner in models_in(info.annotation):
            lines += _entry(f"{name}.{field}", inner)
    return "\n".join(lines) + "\n"


def _setting(name: str, info: FieldInfo) -> Iterator[str]:
    if info.is_required():
        yield f"# {name} has no default."
    elif (default := info.get_default(call_default_factory=True)) is None:
        yield f"# {name} is not set."
    else:
        yield f"#{name} = {toml_value(default)}"


def _entry(name: str, model: type[BaseModel]) -> Iterator[str]:
    """An example of a table in a list, each line a comment that stays one."""
    yield f"# [[{name}]]"
    texts = texts_of(model)
    for field, info in model.model_fields.items():
        required = info.is_required()
        default = None if required else info.get_default(call_default_factory=True)
        shown = toml_value(default) if default is not None else "..."
        kept = "" if required or default is not None else "  (not set)"
        yield from _comment(f"  {field} = {shown}{kept}")
        yield from _comment(_said(texts.get(field, ""), info), "#       ")


def _said(text: str, info: FieldInfo, reload: Sequence[str] = ()) -> str:
    takes = ", ".join([type_name(info.annotation), *limits_of(info), *reload])
    return f"{' '.join(text.split())} ({takes})".strip()


def _reload(info: FieldInfo) -> list[str]:
    if is_reloadable(info):
        return ["reloadable"]
    return [f"reloadable {each.says}" for each in info.metadata if isinstance(each, ReloadableIf)]


def _comment(text: str, before: str = "# ") -> list[str]:
    return textwrap.wrap(
        text if text.startswith("  ") else " ".join(text.split()),
        _WIDTH,
        initial_indent=before,
        subsequent_indent=before,
        break_long_words=False,
        break_on_hyphens=False,
    )


def toml_value(value: Any) -> str:
    """A value as TOML has it, in one line."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{json.dumps(name)} = {toml_value(each)}" for name, each in value.items()
        )
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
