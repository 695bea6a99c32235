"""Goal: a native producer who may write into a bound topic cannot speak as the broker there."""

from __future__ import annotations

import pytest

import lakemq
from lakemq.broker_core.api.errors import InvalidRequest
from tests.support.node.node import NodeProcess


@pytest.fixture
def node(fresh_node: NodeProcess) -> NodeProcess:
    return fresh_node


def test_headers_that_mqtt_believes_are_refused_in_bound_topics(node: NodeProcess) -> None:
    legal = [("mqtt.qos", b"0"), ("mqtt.content_type", b"text"), ("mine", b"x")]
    with lakemq.connect(node.native) as client:
        client.create_topic("other")
        for name in ("mqtt.client", "mqtt.qos2_id", "mqtt.delayed_id"):
            client.send("other", b"copied", key=b"t", headers=[(name, b"a/1")])
            with pytest.raises(InvalidRequest, match=name):
                client.send("mqtt", b"forged", key=b"t", headers=[*legal, (name, b"a/1")])
        client.send("mqtt", b"true", key=b"t", headers=legal)
        assert [each.value for each in client.consume("mqtt")] == [b"true"]
