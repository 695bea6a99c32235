"""Goal: a node lets plugins of amqtt decide who comes in and what it may do."""

from pathlib import Path

from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from tests.integration.security.test_security_node import Device
from tests.support.node.node import PORTS_FREE, NodeProcess

CONFIG = """
[security]
anonymous = "never"

[[plugins.amqtt_auth.plugins]]
path = "amqtt.plugins.authentication.FileAuthPlugin"
config = {{password_file = "{folder}/passwd"}}

[[plugins.amqtt_auth.plugins]]
path = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
config = {{publish_acl = {{ann = ["mine/+"]}}, acl = {{ann = ["mine/#"]}}}}
"""


def test_amqtt_plugins_decide(tmp_path: Path) -> None:
    line = f"ann:{PasswordHash((Argon2Hasher(),)).hash('hunter2')}\n"
    (tmp_path / "passwd").write_text(line)
    with NodeProcess(tmp_path, PORTS_FREE + CONFIG.format(folder=tmp_path)) as node:
        with Device(node, "a1", "ann", "hunter2") as device:
            assert device.next("connect") == 0
            device.client.subscribe("mine/#", 1)
            assert device.next("subscribe") == [1]
            device.client.subscribe("#", 1)
            assert device.next("subscribe") == [0x87]
            device.client.publish("mine/1", b"x", 1)
            assert device.next("publish") == 0
            assert device.next("message") == ("mine/1", b"x")
            device.client.publish("other", b"x", 1)
            assert device.next("publish") == 0x87
        for user, password in (("ann", "wrong"), ("bob", "hunter2"), (None, None)):
            with Device(node, "a2", user, password) as device:
                assert device.next("connect") == 0x86
        assert "hunter2" not in node.log_file.read_text()
