"""Goal: a bridge carries both ways between a real node and Mosquitto, over TLS too, without echo;
`lakemq bridge status` tells how it stands.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lakemq import connect
from lakemq.plugins.mqtt.bridge.commands import bridge
from tests.support.mqtt.certificates import Authority
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.ports import free_ports
from tests.support.remote_brokers import (
    MOSQUITTO,
    BrokerProcess,
    listening,
    mosquitto,
    publish_all,
    publishing,
)

needs_mosquitto = pytest.mark.skipif(
    MOSQUITTO is None, reason="Mosquitto is not installed (apt-get install mosquitto)"
)
WAIT_S = 60


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = mosquitto(tmp_path / "mosquitto").start()
    try:
        yield broker
    finally:
        broker.stop(signal.SIGKILL)


def link(port: int, rules: str, more: str = "", name: str = "far") -> str:
    return (
        f'[[plugins.bridge.links]]\nname = "{name}"\nurl = "mqtt://127.0.0.1:{port}"\n'
        f"retry_min_ms = 50\nretry_max_ms = 200\n{more}\n{rules}"
    )


def rule(direction: str, topic_filter: str, more: str = "") -> str:
    return (
        f'[[plugins.bridge.links.rules]]\ndirection = "{direction}"\n'
        f'filter = "{topic_filter}"\n{more}\n'
    )


def run_status(admin: str) -> Result:
    return CliRunner().invoke(bridge, ["status", "--admin", admin], env={"COLUMNS": "200"})


def status(node: NodeProcess) -> dict[str, str]:
    """What `lakemq bridge status` prints about the one link, as it is now."""
    time.sleep(0.2)
    run = run_status(node.addresses["admin"])
    assert run.exit_code == 0, run.output
    headings, line = (each.split() for each in run.stdout.splitlines())
    return dict(zip(headings, line, strict=True))


def connected(node: NodeProcess) -> dict[str, str]:
    deadline = time.monotonic() + WAIT_S
    while (found := status(node))["connected"] != "yes":
        assert time.monotonic() < deadline, node.log_file.read_text()
        time.sleep(0.1)
    return found


@needs_mosquitto
def test_both_ways_without_echo(tmp_path: Path, remote: BrokerProcess) -> None:
    """One rule for both directions and no prefix: what goes out must not come back."""
    config = PORTS_FREE + link(remote.port, rule("both", "room/#", "qos = 2"))
    with NodeProcess(tmp_path / "node", config) as node:
        connected(node)
        with (
            listening(node.mqtt_port, "room/#", name="here") as here,
            listening(remote.port, "room/#", name="there") as there,
            publishing(node.mqtt_port, "a") as ours,
            publishing(remote.port, "b") as theirs,
        ):
            publish_all(ours, ["room/1"] * 20, [b"ours %d" % n for n in range(20)], 1)
            publish_all(theirs, ["room/2"] * 20, [b"theirs %d" % n for n in range(20)], 1)
            wanted = [("room/1", b"ours %d" % n) for n in range(20)]
            wanted += [("room/2", b"theirs %d" % n) for n in range(20)]
            here.wait_for(40)
            there.wait_for(40)
            time.sleep(0.5)  # an echo would come now
            assert sorted(here.got) == sorted(wanted)
            assert sorted(there.got) == sorted(wanted)
        found = status(node)
        assert (found["forwarded"], found["received"], found["lag"]) == ("20", "20", "0")
    with NodeProcess(tmp_path / "node", config) as node:  # an orderly stop kept everything
        time.sleep(0.3)
        assert connected(node)["forwarded"] == "0"


@needs_mosquitto
def test_retained_empty_and_large_payloads_cross(tmp_path: Path, remote: BrokerProcess) -> None:
    config = PORTS_FREE + link(
        remote.port,
        rule("out", "#", 'remote_prefix = "up/"') + rule("in", "#", 'remote_prefix = "down/"'),
    )
    large = os.urandom(700_000)
    with NodeProcess(tmp_path / "node", config) as node:
        connected(node)
        with publishing(node.mqtt_port) as ours, publishing(remote.port) as theirs:
            for client, prefix in ((ours, ""), (theirs, "down/")):
                publish_all(client, [f"{prefix}empty", f"{prefix}large"], [b"", large], 1)
                client.publish(f"{prefix}kept", b"k", 1, retain=True).wait_for_publish(WAIT_S)
        for port, prefix in ((remote.port, "up/"), (node.mqtt_port, "")):
            deadline = time.monotonic() + WAIT_S
            retained: list[tuple[str, bytes]] = []
            while not retained and time.monotonic() < deadline:
                with listening(port, f"{prefix}kept", name=f"late {port}") as late:
                    time.sleep(0.2)
                    retained = late.retained
            assert retained == [(f"{prefix}kept", b"k")]
        with connect(node.native) as client:
            stored = {record.key: record.value for record in client.consume("mqtt")}
        assert stored[b"large"] == large
        assert int(status(node)["forwarded"]) == 3


def test_two_nodes_that_bridge_to_each_other_do_not_turn_in_a_circle(tmp_path: Path) -> None:
    far_port, near_port = free_ports(2)

    def config(own_port: int, other_port: int, peer: str) -> str:
        fixed = PORTS_FREE.replace("mqtt]\nport = 0", f"mqtt]\nport = {own_port}")
        node_id = "near" if peer == "far" else "far"
        more = f'client_id = "bridge-of-{node_id}"\nno_echo_clients = ["bridge-of-{peer}"]'
        return fixed + link(other_port, rule("out", "#"), more, name=peer)

    near = NodeProcess(tmp_path / "near", config(near_port, far_port, "far")).start()
    far = NodeProcess(tmp_path / "far", config(far_port, near_port, "near")).start()
    try:
        connected(near)
        connected(far)
        with publishing(near_port) as client:
            publish_all(client, ["x"] * 10, [b"%d" % n for n in range(10)], 1)
        deadline = time.monotonic() + WAIT_S
        while int(status(near)["forwarded"]) < 10 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        assert status(near)["forwarded"] == "10"
        assert status(far)["forwarded"] == "0"
        with connect(near.native) as reader:
            assert len(list(reader.consume("mqtt"))) == 10
    finally:
        near.kill()
        far.kill()


@needs_mosquitto
def test_tls_with_user_and_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("/CN=127.0.0.1", "server")
    key.chmod(0o644)
    passwords = tmp_path / "passwords"
    tool = str(Path(MOSQUITTO or "").parents[1] / "bin" / "mosquitto_passwd")
    subprocess.run([tool, "-b", "-c", str(passwords), "site", "secret"], check=True)
    passwords.chmod(0o644)
    remote = mosquitto(tmp_path / "mosquitto")
    file = tmp_path / "mosquitto" / "mosquitto.conf"
    file.write_text(
        file.read_text().replace("allow_anonymous true", "allow_anonymous false")
        + f"certfile {certificate}\nkeyfile {key}\npassword_file {passwords}\n"
    )
    more = (
        f'tls_ca = "{authority.certificate}"\nusername = "site"\npassword_env = "FAR_PASSWORD"\n'
        'start = "earliest"'
    )
    config = PORTS_FREE + link(remote.port, rule("out", "#"), more).replace("mqtt://", "mqtts://")
    remote.start()
    try:
        with NodeProcess(tmp_path / "node", config, {"FAR_PASSWORD": "wrong"}) as node:
            deadline = time.monotonic() + WAIT_S
            while "not authorized" not in (text := node.log_file.read_text()):
                assert time.monotonic() < deadline, text
                time.sleep(0.1)
            assert "wrong" not in text, "secrets are never logged"
            with publishing(node.mqtt_port) as client:
                publish_all(client, ["x"] * 5, [b"%d" % n for n in range(5)], 1)
        with NodeProcess(tmp_path / "node", config, {"FAR_PASSWORD": "secret"}) as node:
            connected(node)
            deadline = time.monotonic() + WAIT_S
            while status(node)["forwarded"] != "5" and time.monotonic() < deadline:
                time.sleep(0.1)
            assert status(node)["forwarded"] == "5"
    finally:
        remote.stop(signal.SIGKILL)


def test_what_is_wrong_is_told_at_the_start(tmp_path: Path) -> None:
    more = 'username = "u"\npassword_env = "NOT_SET_ANYWHERE"'
    node = NodeProcess(tmp_path / "node", PORTS_FREE + link(1, rule("out", "#"), more))
    with pytest.raises(AssertionError, match="NOT_SET_ANYWHERE"):
        node.start()


def test_a_node_without_bridges_says_so(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        assert run_status(node.addresses["admin"]).stdout == "no node runs a bridge\n"
    run = run_status("127.0.0.1:1")
    assert run.exit_code == 3
    assert run.stderr.startswith("lakemq: 127.0.0.1:1: ")
