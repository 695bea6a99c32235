"""Goal: other certificates, by other paths, are shown to new connections after a reload, on every
listener or on none; connections that are open stay."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakemq.cli.commands import add_plugin_commands, app
from tests.support.mqtt.certificates import Authority
from tests.support.node.node import NodeProcess

Pair = tuple[Path, Path]
CONFIG = """
[admin]
port = 0
{admin}
[meta]
port = 0
[plugins.native]
port = 0
{native}
[plugins.mqtt]
tcp = false
[[plugins.mqtt.listeners]]
name = "mqtts"
{mqtt}
"""
LISTENERS = ("admin", "native", "mqtts")
_with_plugins = cache(add_plugin_commands)


def config_of(mqtt: Pair | None, native: Pair, admin: Pair) -> str:
    def files(pair: Pair | None) -> str:
        return "" if pair is None else f'tls_cert = "{pair[0]}"\ntls_key = "{pair[1]}"'

    return CONFIG.format(mqtt=files(mqtt), native=files(native), admin=files(admin))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def first(authority: Authority) -> Pair:
    return authority.sign("/CN=first", "first")


@pytest.fixture(scope="module")
def second(authority: Authority) -> Pair:
    return authority.sign("/CN=second", "second")


@pytest.fixture
def node(tmp_path: Path, first: Pair) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path, config_of(first, first, first)) as node:
        yield node


def connected(authority: Authority, address: str) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    context = authority.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    plain = socket.create_connection((host, int(port)), timeout=30)
    return context.wrap_socket(plain, server_hostname=host)


def shown(authority: Authority, node: NodeProcess) -> list[str]:
    """Common names that the listeners show."""
    found = []
    for name in LISTENERS:
        with connected(authority, node.addresses[name]) as link:
            subject = (link.getpeercert() or {})["subject"]
            found.append(dict(part[0] for part in subject)["commonName"])  # type: ignore[misc]
    return found


def reload(authority: Authority, node: NodeProcess) -> Result:
    _with_plugins()
    where = ["--admin", f"https://{node.addresses['admin']}", "--tls-ca", authority.certificate]
    return CliRunner().invoke(app, ["config", "reload", "--json", *map(str, where)])


def test_other_paths_are_used_by_new_connections(
    authority: Authority, node: NodeProcess, first: Pair, second: Pair
) -> None:
    assert shown(authority, node) == ["first"] * 3
    with connected(authority, node.addresses["mqtts"]) as before:
        node.config_file.write_text(config_of(second, second, second))
        done = reload(authority, node)
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        assert {each["setting"] for each in found["applied"]} == {
            "plugins.admin.tls_cert", "plugins.admin.tls_key", "plugins.native.tls_cert",
            "plugins.native.tls_key", "plugins.mqtt.listeners",
        }  # fmt: skip
        assert found["restart"] == []
        assert shown(authority, node) == ["second"] * 3
        before.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")  # CONNECT
        assert before.recv(4) == b"\x20\x02\x00\x00"


def test_a_file_that_is_wrong_changes_nothing_anywhere(
    authority: Authority, node: NodeProcess, first: Pair, second: Pair, tmp_path: Path
) -> None:
    # The key of another certificate, and no file at all: each listener once.
    crossed, absent = (second[0], first[1]), (tmp_path / "no.pem", tmp_path / "no.key")
    for wrong in (crossed, absent):
        for place in range(3):
            pairs = [second] * 3
            pairs[place] = wrong
            node.config_file.write_text(config_of(*pairs))
            refused = reload(authority, node)
            assert refused.exit_code == 2, refused.stdout
            assert str(wrong[0]) in refused.stderr
            assert shown(authority, node) == ["first"] * 3


def test_tls_is_turned_off_by_a_restart_alone(
    authority: Authority, node: NodeProcess, first: Pair
) -> None:
    node.config_file.write_text(config_of(None, first, first))
    done = reload(authority, node)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["setting"] for each in found["restart"]] == ["plugins.mqtt.listeners"]
    assert found["applied"] == [] and shown(authority, node) == ["first"] * 3


def test_no_handshake_is_lost_by_the_event_loop(authority: Authority, node: NodeProcess) -> None:
    """A loop may have read a client's first words before TLS is there to take them."""
    for _ in range(40):
        connected(authority, node.addresses["admin"]).close()
