"""What `lakemq config check` finds: all that is wrong at once, also what a start would tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from opentelemetry.metrics import NoOpMeter
from pydantic import BaseModel

from lakemq.broker_core.api.errors import ConfigError, LakeMQError, PluginError
from lakemq.broker_core.api.ports import Interceptor, Mechanism, PluginContext
from lakemq.broker_core.configuration.config import (
    Config,
    ConfigSource,
    checked_config,
    read_source,
)
from lakemq.broker_core.plugin_host import LoadedPlugin, PluginHost
from lakemq.config_checks import Place, check_together, sections

_FILES: Final = (
    "tls_cert", "tls_key", "tls_ca", "key_file", "secret_file", "jwks_file", "rules_file"
)  # fmt: skip
"""Names of settings that name a file which must be there at the start."""
_EVERYWHERE: Final = ("0.0.0.0", "::", "")


class Listening(NamedTuple):
    """A port that a node would open."""

    place: Place
    host: str
    port: int


class Findings(NamedTuple):
    """What the check found."""

    errors: list[LakeMQError]
    warnings: list[str]
    plugins: list[str]
    """Names of those that are on."""


def check(path: Path | None, environment: Mapping[str, str]) -> Findings:
    """All that is wrong, and what is allowed but hardly meant."""
    try:
        source = read_source(path, environment)
    except ConfigError as error:
        return Findings([error], [], [])
    config, errors = checked_config(source)
    found: list[LakeMQError] = [*errors]
    host, warnings = PluginHost(source), list[str]()
    try:
        found += host.unknown_sections()
        host.load(strict=False)
    except LakeMQError as error:
        return Findings([*found, error], [], [])
    found += [PluginError(each.error) for each in host.plugins if each.enabled and each.error]
    if config is not None:
        found += _hooks(host, config)
        found += _clashes(source, listening(config, host.enabled()))
        found += _missing_files(source, config, host.enabled())
        try:
            warnings = check_together(config, host.enabled())
        except LakeMQError as error:
            found.append(error)
    return Findings(found, warnings, [plugin.name for plugin in host.enabled()])


def _hooks(host: PluginHost, config: Config) -> Iterator[LakeMQError]:
    """Of hooks that need nothing of a running node: do they return what they should?"""

    def arguments(plugin: LoadedPlugin) -> dict[str, object]:
        folder = Path(config.node.data_dir).expanduser().absolute() / plugin.name
        meter = NoOpMeter(plugin.name)
        context = PluginContext(plugin.name, plugin.settings, config.node.id, folder, meter)
        return {"context": context}

    for hook, kind in (("register_interceptors", Interceptor), ("register_mechanisms", Mechanism)):
        try:
            host.collect_each(hook, arguments, kind)
        except PluginError as error:
            yield error


def listening(config: Config, plugins: Sequence[LoadedPlugin]) -> list[Listening]:
    """Every port that is written or the default; not those that the system chooses."""
    meta, cluster, roles = config.meta, config.cluster, config.node.roles
    found = []
    if "meta" in roles:
        found.append(Listening(("meta", "port"), meta.host, meta.port))
        if meta.members or meta.join:
            found.append(Listening(("meta", "raft_port"), meta.host, meta.raft_port))
    if "broker" in roles:
        peer_host = cluster.host or meta.host
        found.append(Listening(("cluster", "peer_port"), peer_host, cluster.peer_port))
    else:
        plugins = [each for each in plugins if "register_admin" in each.hooks]
    for plugin in plugins:
        for place, section in sections(("plugins", plugin.name), plugin.settings):
            port, host = getattr(section, "port", None), getattr(section, "host", None)
            if isinstance(port, int) and isinstance(host, str) and getattr(section, "tcp", True):
                found.append(Listening((*place, "port"), host, port))
    node_host = config.node.host
    return [each._replace(host=each.host or node_host) for each in found if each.port]


def _clashes(source: ConfigSource, ports: Sequence[Listening]) -> Iterator[ConfigError]:
    for number, one in enumerate(ports):
        for other in ports[:number]:
            if one.port == other.port and _overlap(one.host, other.host):
                first = ".".join(map(str, other.place))
                yield source.error(one.place, f"port {one.port} is that of {first} too")


def _overlap(one: str, other: str) -> bool:
    names = {"localhost": "127.0.0.1"}
    one, other = names.get(one, one), names.get(other, other)
    return one == other or one in _EVERYWHERE or other in _EVERYWHERE


def _missing_files(
    source: ConfigSource, config: Config, plugins: Sequence[LoadedPlugin]
) -> Iterator[ConfigError]:
    roots: list[tuple[Place, BaseModel]] = [
        ((name,), getattr(config, name)) for name in ("meta", "security")
    ]
    roots += [(("plugins", plugin.name), plugin.settings) for plugin in plugins]
    for root in roots:
        for place, section in sections(*root):
            for name in _FILES:
                file = getattr(section, name, "")
                if isinstance(file, str) and file and not Path(file).expanduser().is_file():
                    yield source.error((*place, name), f"there is no file {file}")
