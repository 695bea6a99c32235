"""The configuration: a TOML file and variables."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.configuration.config import SECTIONS, _check_top, parse_config
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.mqtt.bridge.config import BridgeSettings
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.native.config import NativeSettings
from tests.fuzz.registry import pieces, target

PLUGINS = {
    "bridge": BridgeSettings,
    "journal": JournalSettings,
    "mqtt": MqttSettings,
    "native": NativeSettings,
}
CONFIG = b"""[node]
data_dir = "x"

[[security.rules]]
who = ["any"]
operations = ["all"]
resource = "topic:a"

[plugins.mqtt]
port = 1883

[[plugins.mqtt.topics]]
filter = "a/#"
topic = "t"
"""


@target("config.toml", seeds=[
    CONFIG, b"[node]\nport = " + b"9" * 5000, b"a = " + b"[" * 2000, b"[node]\nx = 1979-99-99",
    b'[topics]\nretention_ms = "x"\n"" = 5', CONFIG + b"\xff\x00\xffPLUGINS__MQTT__PORT=x",
    b"[security.authentication]\nkind = [5]", b"[[security.authentication]]\nkind = 5",
], weight=6)  # fmt: skip
def config(data: bytes) -> None:
    """A configuration is valid, or ConfigError names file and setting."""
    text, *variables = (each.decode("utf-8", "replace") for each in pieces(data))
    named: Mapping[str, str] = {
        f"LAKEMQ_{name}": value
        for name, _, value in (each.partition("=") for each in variables)
        if "__" in name
    }
    with contextlib.suppress(ConfigError):
        source = parse_config("lakemq.toml", text, named)
        _check_top(source)
        for name, model in SECTIONS.items():
            with contextlib.suppress(ConfigError):
                source.section((name,), model)
        for name, model in PLUGINS.items():
            with contextlib.suppress(ConfigError):
                source.section(("plugins", name), model)
