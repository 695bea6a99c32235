"""Goal: a plugin is found by its entry point, checked before it runs, and every fault names it."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from types import ModuleType

import pytest

from lakemq.broker_core.api.errors import ConfigError, PluginError
from lakemq.broker_core.api.hooks import ENTRY_POINT_GROUP, hookimpl
from lakemq.broker_core.api.ports import Interceptor
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.broker_core.configuration.config import parse_config
from lakemq.broker_core.plugin_host import PluginHost


class LineSettings(PluginSettings):
    port: int = 7
    """A port."""


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made = ModuleType("line_plugin_under_test")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def host(text: str, module: str = "line_plugin_under_test", name: str = "line") -> PluginHost:
    return PluginHost(parse_config("f", text, {}), [EntryPoint(name, module, ENTRY_POINT_GROUP)])


def give(module: ModuleType, **functions: object) -> None:
    for name, function in functions.items():
        setattr(module, name, hookimpl(function))


def settings_hook() -> type[PluginSettings]:
    return LineSettings


def test_a_plugin_with_a_section_is_on_and_configured(module: ModuleType) -> None:
    give(module, register_settings=settings_hook)
    loaded = host("[plugins.line]\nport = 9\n")
    loaded.load()
    (plugin,) = loaded.enabled()
    assert plugin.settings == LineSettings(port=9)
    assert plugin.hooks == ("register_settings",)


def test_a_plugin_without_a_section_is_off_but_can_be_looked_at(module: ModuleType) -> None:
    give(module, register_settings=settings_hook)
    loaded = host("")
    loaded.load(disabled_too=True)
    assert not loaded.enabled()
    assert loaded.plugins[0].hooks == ("register_settings",)


def test_enabled_false_switches_off(module: ModuleType) -> None:
    loaded = host("[plugins.line]\nenabled = false\n")
    loaded.load()
    assert not loaded.enabled()


def test_a_plugin_is_listed_with_what_brings_it(tmp_path: Path) -> None:
    for brings, version, plugins in (("acme", "1.2", "ab"), ("other", "3.4", "c")):
        about = tmp_path / f"{brings}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {brings}\nVersion: {version}\n")
        lines = [f"[{ENTRY_POINT_GROUP}]", *(f"{each} = nothing" for each in plugins)]
        (about / "entry_points.txt").write_text("\n".join(lines))
    points = [point for each in distributions(path=[str(tmp_path)]) for point in each.entry_points]
    loose = EntryPoint("d", "nothing", ENTRY_POINT_GROUP)
    loaded = PluginHost(parse_config("f", "", {}), [*points, loose])
    loaded.load()
    assert [(each.name, each.distribution, each.version) for each in loaded.plugins] == [
        ("a", "acme", "1.2"), ("b", "acme", "1.2"), ("c", "other", "3.4"), ("d", "?", "?"),
    ]  # fmt: skip


def test_an_unknown_setting_names_plugin_and_line(module: ModuleType) -> None:
    give(module, register_settings=settings_hook)
    with pytest.raises(ConfigError, match=r"f:2: plugins\.line\.prot: unknown setting; did you"):
        host("[plugins.line]\nprot = 9\n").load()


def test_a_section_for_nothing_installed(module: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"f:1: plugins\.lien: no plugin of that name"):
        host("[plugins.lien]\n").load()


def test_a_misspelt_hook_is_refused(module: ModuleType) -> None:
    def register_listners() -> None: ...

    give(module, register_listners=register_listners)
    with pytest.raises(PluginError, match="plugin line: .*register_listners"):
        host("[plugins.line]\n").load()


def test_a_wrong_argument_is_refused(module: ModuleType) -> None:
    def register_listeners(contxt: object) -> None: ...

    give(module, register_listeners=register_listeners)
    with pytest.raises(PluginError, match="plugin line: .*contxt"):
        host("[plugins.line]\n").load()


def test_a_failed_import_is_kept_for_the_list() -> None:
    loaded = host("[plugins.line]\n", module="no_such_module_anywhere")
    loaded.load(strict=False)
    assert "plugin line: ModuleNotFoundError" in loaded.plugins[0].error
    assert not loaded.enabled()
    with pytest.raises(PluginError, match="plugin line: ModuleNotFoundError"):
        host("[plugins.line]\n", module="no_such_module_anywhere").load()


def test_settings_must_be_plugin_settings(module: ModuleType) -> None:
    def register_settings() -> type:
        return dict

    give(module, register_settings=register_settings)
    with pytest.raises(PluginError, match="plugin line: register_settings must return"):
        host("[plugins.line]\n").load()


def test_collect_calls_enabled_plugins_and_names_the_one_that_fails(module: ModuleType) -> None:
    def register_authenticator(context: object) -> object:
        return context

    def register_authorizer(context: object) -> object:
        raise RuntimeError("no luck")

    give(
        module,
        register_authenticator=register_authenticator,
        register_authorizer=register_authorizer,
    )
    loaded = host("[plugins.line]\n")
    loaded.load()
    found = loaded.collect("register_authenticator", lambda plugin: {"context": plugin.name})
    assert [(plugin.name, value) for plugin, value in found] == [("line", "line")]
    with pytest.raises(
        PluginError, match="plugin line: register_authorizer: RuntimeError: no luck"
    ):
        loaded.collect("register_authorizer", lambda plugin: {"context": None})


def test_built_in_plugins_are_on_without_a_section() -> None:
    loaded = PluginHost(parse_config("f", "", {}))
    loaded.load()
    hooks = {plugin.name: set(plugin.hooks) for plugin in loaded.enabled()}
    assert hooks.keys() == {"admin", "bridge", "journal", "ledger", "mqtt", "native"}
    assert "register_storage" in hooks["journal"]
    assert "register_listeners" in hooks["mqtt"] & hooks["native"]


def test_built_in_commands_are_collected() -> None:
    loaded = PluginHost(parse_config("f", "", {}))
    loaded.load()
    found = loaded.collect("register_commands", lambda _: {})
    names = {name for _, commands in found for name, _ in commands}
    assert {"topic", "produce", "consume"} <= names


def test_mechanisms_are_collected(module: ModuleType) -> None:
    def register_mechanisms(context: object) -> list[str]:
        return [f"made for {context}"]

    give(module, register_mechanisms=register_mechanisms)
    loaded = host("[plugins.line]\n")
    loaded.load()
    found = loaded.collect("register_mechanisms", lambda plugin: {"context": plugin.name})
    assert [value for _, value in found] == [["made for line"]]


class Passing:
    def intercept(self, topic: str, columns: object, principal: object) -> object:
        return columns


def _broken() -> Iterator[object]:
    yield Passing()
    raise KeyError("unit")


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (Passing(), "returned <.*Passing.*; it must return a list"),
        ("abc", "returned 'abc'; it must return a list"),
        ([Passing(), 5], "5 is no Interceptor"),
        ([Passing], "Passing'> is no Interceptor"),
        (_broken(), "KeyError: 'unit'"),
    ],
)
def test_what_a_hook_returns_is_checked(module: ModuleType, returned: object, text: str) -> None:
    give(module, register_interceptors=lambda: returned)
    loaded = host("[plugins.line]\n")
    loaded.load()
    with pytest.raises(PluginError, match=f"^plugin line: register_interceptors: .*{text}"):
        loaded.collect_each("register_interceptors", lambda plugin: {}, Interceptor)
