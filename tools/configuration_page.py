"""docs/configuration.md, from the settings classes."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lakemq.broker_core.api.settings import ReloadableIf, is_reloadable
from lakemq.broker_core.configuration.config import SECTIONS, ConfigSource
from lakemq.broker_core.configuration.config_words import models_in
from lakemq.broker_core.configuration.setting_types import limits_of, type_name
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.plugins.admin.api.descriptions import texts_of

_INTRODUCTION = """\
# Configuration

<!-- Generated from the settings classes by `make generate`; do not edit. -->

One TOML file, given by `lakemq start --config lakemq.toml`; without one, every setting has the
default below and the plugins `journal`, `mqtt`, `native`, `bridge` and `admin` are on. The file is
strict: an unknown key is an error that names its line and the nearest known key. `lakemq config
check --config F` checks a file without starting anything, and tells all that is wrong at once.
[lakemq.toml](lakemq.toml) is a complete file, each setting commented and at its default; `lakemq
init` writes it, with the settings of the plugins that are installed.

- **Plugins.** A plugin is on when it has a section, `[plugins.<name>]`, unless that says
  `enabled = false`. Those five are on without a section; `[plugins.admin]` may be written
  `[admin]`.
- **Variables.** `LAKEMQ_NODE__DATA_DIR=/var/lib/lakemq` overrides `node.data_dir`: path in
  capitals, its parts joined by two underscores, the value as TOML has it (text needs no quotes).

## Changes while a node runs

Settings with `yes` under *reload* are used without a restart when the node reads its file again: on
`SIGHUP` (`systemctl reload lakemq`), on `lakemq config reload [--node N]`, or by `POST
/api/v1/nodes/{node}/reload`. All of the file is checked before, as by a start: a file that is wrong
changes nothing, and the log, the command's error and the counter
`lakemq.node.config.reloads{outcome="failed"}` tell of it. Else every reloadable setting that
differs is used at once, no connection is closed, and the others are named as needing a restart, in
the log, in the answer, and by the metric `lakemq.node.config.restart_pending`.

- `lakemq config reload --dry-run` says what would change. `lakemq config diff` shows, for all
  nodes, what is written otherwise than it is used; `lakemq config show` what is in use and where it
  is from, `--effective` defaults included.
- Defaults of topics hold for topics that are created later; those that are there keep theirs
  (`lakemq topic alter`).
- Bounds of one connection or stream hold for those that are opened later; a bound of many that is
  lowered closes nothing that is there.
- Variables are those that the process was started with, and come before the file as always.
- Dynamic settings, below, come before variables and the file.
- `while on` under *reload*: another value is used at once; to turn it on or off, by a value in
  place of none (empty, 0) or the other way round, needs a restart.
- TLS files of clients' listeners, `rules_file`, password files and keys need no reload: they are
  read again when they change. Other paths of TLS files are used for new connections after a
  reload, and a path that is wrong changes nothing; other paths of the rest need a restart. So do
  the files of `[meta]`, whose connections between nodes stay open.

## Settings of the whole cluster

`lakemq config set topics.retention_ms 86400000` keeps a setting in the MetaService, and all nodes
use it at once and after every restart, until `lakemq config unset`; with `--scope node=n1`, that
node alone. Of one setting, the first of these that has it counts: dynamic for the node, dynamic for
the cluster, variable, file, default. `lakemq config list` shows what is kept, `lakemq config get
topics.retention_ms` what each node uses and from where. Settings of one topic are those of `lakemq
topic alter`.

- Only what is reloadable and a single value can be set so, and nothing of `[security]`: rules,
  users and quotas are kept by commands of their own, which take a right of their own. It takes the
  right to `alter` the cluster, and is in the audit log.
- What a node can't use (a plugin that is off there, a setting of another version, a value that the
  file's other settings forbid) it leaves out, with a warning in its log and a reason in `lakemq
  config list`. It never keeps a node from starting.
- A node uses them as soon as it has asked the MetaService, before it says that it is ready; where
  the MetaService does not answer within 5 s, it goes on with the file until it does.
"""


def configuration_page() -> str:
    host = PluginHost(ConfigSource("(defaults)"))
    host.load(disabled_too=True)
    built_in = {name: model for name, model in host.settings_models().items() if _is_ours(model)}
    parts = [_INTRODUCTION]
    for name, section in SECTIONS.items():
        parts.append(_section(name, section))
    for name, plugin in sorted(built_in.items()):
        parts.append(_section(f"plugins.{name}", plugin))
    return "\n".join(parts)


def _is_ours(model: type[BaseModel]) -> bool:
    return model.__module__.startswith("lakemq.plugins.")


def _section(name: str, model: type[BaseModel]) -> str:
    lines = [f"## `[{name}]`", "", " ".join((model.__doc__ or "").split()), ""]
    lines += ["| setting | type | default | reload | what it does |", "|---|---|---|---|---|"]
    nested: list[tuple[str, type[BaseModel]]] = []
    texts = texts_of(model)
    for field, info in model.model_fields.items():
        some = [each.says for each in info.metadata if isinstance(each, ReloadableIf)]
        reload = "yes | " if is_reloadable(info) else f"{', '.join(some)} | "
        lines.append(_row(field, info, texts.get(field, ""), reload))
        nested += [(field, inner) for inner in models_in(info.annotation)]
    for field, inner in nested:
        if [each for each, _ in nested].count(field) > 1:
            said = " ".join((inner.__doc__ or "").split())
            lines += ["", f"An entry of `{field}` (`[[{name}.{field}]]`). {said}", ""]
        else:
            lines += ["", f"Each entry of `{field}` (`[[{name}.{field}]]`):", ""]
        lines += ["| setting | type | default | what it does |", "|---|---|---|---|"]
        texts = texts_of(inner)
        lines += [
            _row(each, info, texts.get(each, "")) for each, info in inner.model_fields.items()
        ]
    return "\n".join(lines) + "\n"


def _row(name: str, info: FieldInfo, text: str, reload: str = "") -> str:
    """`reload`: a column that sections have, and entries of their lists have not."""
    text = " ".join(text.split()).replace("|", "\\|")
    default = (
        "(required)"
        if info.is_required()
        else f"`{_shown(info.get_default(call_default_factory=True))}`"
    )
    limits = ", ".join(limits_of(info))
    kind = type_name(info.annotation) + (f", {limits}" if limits else "")
    return f"| `{name}` | {kind} | {default} | {reload}{text} |"


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, (list, tuple)):
        value = [each.model_dump() if isinstance(each, BaseModel) else each for each in value]
    return json.dumps(value, default=str).replace("|", "\\|")
