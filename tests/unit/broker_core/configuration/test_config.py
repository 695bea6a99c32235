"""Goal: a configuration that is wrong is refused in one line that names file, line and setting."""

from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.settings import PluginSettings, Section
from lakemq.broker_core.configuration.config import load_config, parse_config, read_source
from lakemq.broker_core.topics.topic_admin import default_topic_config


class Binding(Section):
    filter: str
    """A filter."""


class Example(PluginSettings):
    port: int = 1
    """A port."""
    name: str = ""
    """A name."""
    ratio: float = 0.5
    """A ratio."""
    bindings: list[Binding] = []
    """Bindings."""


def write(folder: Path, text: str) -> Path:
    file = folder / "lakemq.toml"
    file.write_text(text)
    return file


def complaint(folder: Path, text: str, **variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text), variables)
    return str(caught.value).removeprefix(f"{folder}/")


def test_defaults_without_a_file() -> None:
    config = load_config(None, {})
    assert (config.node.id, config.meta.port) == ("node-1", 9701)
    assert config.meta.raft_port == 9702


def test_file_overrides_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '[node]\nid = "a"\n[meta]\nport = 1\n'), {})
    assert (config.node.id, config.meta.port) == ("a", 1)


def test_unknown_setting_names_line_and_nearest(tmp_path: Path) -> None:
    text = '[node]\nid = "a"\n\n[meta]\n# the port\nprot = 9\n'
    assert complaint(tmp_path, text) == (
        "lakemq.toml:6: meta.prot: unknown setting; did you mean 'port'?"
    )


def test_unknown_section_names_line_and_nearest(tmp_path: Path) -> None:
    assert complaint(tmp_path, "[nodes]\nid = 1\n") == (
        "lakemq.toml:1: nodes: unknown section; did you mean 'node'?"
    )


def test_wrong_type_names_line_and_value(tmp_path: Path) -> None:
    assert complaint(tmp_path, '[meta]\nport = "x"\n') == (
        "lakemq.toml:2: meta.port: it takes a whole number, not 'x'"
    )


def test_out_of_bounds(tmp_path: Path) -> None:
    assert "lakemq.toml:2: meta.port: it takes 65535 at most, not 70000" in complaint(
        tmp_path, "[meta]\nport = 70000\n"
    )


def test_not_toml_names_line(tmp_path: Path) -> None:
    assert "lakemq.toml: not TOML" in complaint(tmp_path, "[node\n")
    assert "line 1" in complaint(tmp_path, "[node\n")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_config(tmp_path / "absent.toml", {})


def test_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_bytes(b"[node]\n\xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 7"):
        load_config(file, {})


def test_variables_override_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[node]\nid = "a"\n')
    config = load_config(file, {"LAKEMQ_NODE__ID": "123", "LAKEMQ_META__PORT": "7"})
    assert (config.node.id, config.meta.port) == ("123", 7)


def test_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="LAKEMQ_META__PORT: it takes a whole number"):
        load_config(None, {"LAKEMQ_META__PORT": "seven"})
    with pytest.raises(ConfigError, match="LAKEMQ_NOD__ID: unknown section nod; did you mean"):
        load_config(None, {"LAKEMQ_NOD__ID": "x"})
    with pytest.raises(ConfigError, match="LAKEMQ_NODE__IDD: unknown setting; did you mean 'id'"):
        load_config(None, {"LAKEMQ_NODE__IDD": "x"})


def test_the_admin_plugin_has_a_short_section() -> None:
    short = parse_config("f", "[admin]\nport = 7\nname = 3\n", {})
    long = parse_config("f", "[plugins.admin]\nport = 7\nname = 3\n", {})
    assert short.data == long.data
    for source, name in ((short, "admin"), (long, "plugins.admin")):
        with pytest.raises(ConfigError, match=rf"f:3: {name}\.name: it takes text"):
            source.section(("plugins", "admin"), Example)
    with pytest.raises(ConfigError, match=r"\[plugins\.admin\], which is written too"):
        parse_config("f", "[admin]\nport = 7\n[plugins.admin]\nport = 8\n", {})
    source = read_source(None, {"LAKEMQ_ADMIN__PORT": "8"})
    assert source.section(("plugins", "admin"), Example).port == 8


def test_variables_that_are_no_settings_are_left_alone() -> None:
    load_config(None, {"LAKEMQ_BOOTSTRAP": "x", "OTHER__THING": "y"})


def test_plugin_section_with_nested_tables() -> None:
    text = (
        "[plugins.x]\nport = 2\n"
        '[[plugins.x.bindings]]\nfilter = "a"\n'
        '[[plugins.x.bindings]]\nfiltr = "b"\n'
    )
    source = parse_config("f", text, {})
    with pytest.raises(ConfigError) as caught:
        source.section(("plugins", "x"), Example)
    assert str(caught.value).splitlines() == [
        "f:5: plugins.x.bindings.1.filter: this setting is required",
        "f:6: plugins.x.bindings.1.filtr: unknown setting; did you mean 'filter'?",
    ]


def test_plugin_section_by_variables() -> None:
    variables = {
        "LAKEMQ_PLUGINS__X__PORT": "5",
        "LAKEMQ_PLUGINS__X__NAME": "5",
        "LAKEMQ_PLUGINS__X__BINDINGS": '[{filter = "q"}]',
    }
    got = parse_config("f", "", variables).section(("plugins", "x"), Example)
    assert (got.port, got.name, got.bindings[0].filter) == (5, "5", "q")
    assert parse_config("f", "", variables).has(("plugins", "x"))
    assert not parse_config("f", "", variables).has(("plugins", "y"))


def test_a_section_that_is_no_table(tmp_path: Path) -> None:
    assert complaint(tmp_path, "node = 3\n") == "lakemq.toml:1: node: node is a table, [node]"


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes", "timestamp_ahead_max_ms"])
@pytest.mark.parametrize("value", ["-1", '"none"'])
def test_a_limit_may_be_none(tmp_path: Path, name: str, value: str) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text(f"[topics]\n{name} = {value}\n")
    config = load_config(file, {})
    assert getattr(default_topic_config(config.topics), name) is None


def test_a_limit_is_none_or_a_number(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text('[topics]\nretention_ms = "never"\n')
    with pytest.raises(ConfigError, match=r"retention_ms"):
        load_config(file, {})
