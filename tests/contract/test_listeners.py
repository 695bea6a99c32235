"""Goal: the listeners of MQTT and of the native protocol keep the contract that plugins are held
to.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemq.broker_core.api.ports import Broker, Listener
from lakemq.plugins.mqtt import plugin as mqtt
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.native import plugin as native
from lakemq.plugins.native.config import NativeSettings
from lakemq.testing import ListenerContract, MakeListener, plugin_context

pytestmark = pytest.mark.slow


class TestMqtt(ListenerContract):
    @pytest.fixture
    def make_listener(self, tmp_path: Path) -> MakeListener:
        def make(broker: Broker, port: int) -> Listener:
            context = plugin_context(MqttSettings(port=port), tmp_path, name="mqtt")
            (listener,) = mqtt.register_listeners(context, broker)
            return listener

        return make


class TestNative(ListenerContract):
    @pytest.fixture
    def make_listener(self, tmp_path: Path) -> MakeListener:
        def make(broker: Broker, port: int) -> Listener:
            context = plugin_context(NativeSettings(port=port), tmp_path, name="native")
            (listener,) = native.register_listeners(context, broker)
            return listener

        return make
