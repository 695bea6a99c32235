"""Goal: `config check` tells all that is wrong at once, each with its line and in plain words, and
passes nothing that a start refuses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemq.cli.config_findings import check


def found(folder: Path, text: str, **variables: str) -> list[str]:
    file = folder / "f.toml"
    file.write_text(text)
    findings = check(file, variables)
    return [str(line) for each in findings.errors for line in str(each).splitlines()]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = """
[node]
id = "a b"
log_level = "loud"
[admin]
port = 70000
[topics]
partitions = "3"
[plugins.mqtt]
prot = 1
tcp = 1
[[plugins.mqtt.bindings]]
filter = "x"
[plugins.native]
port = -1
[plugins.nativ]
[oddity]
"""
    file = f"{tmp_path}/f.toml"
    said = found(tmp_path, text, LAKEMQ_META__PORT="x")
    assert [line.removeprefix(file) for line in said if "log_level" not in line] == [
        ":17: oddity: unknown section; known are cluster, interceptors, meta, node, plugins, "
        "schedules, security, telemetry, topics, transactions",
        ":3: node.id: it takes 1 to 63 letters, digits, dots, hyphens and underscores, a letter or "
        "digit first, not 'a b'",
        "LAKEMQ_META__PORT: it takes a whole number, not 'x'",
        ":8: topics.partitions: it takes a whole number, not '3'",
        ":16: plugins.nativ: no plugin of that name is installed; installed: admin, amqtt_auth, "
        "bridge, journal, ledger, mqtt, native, webhook",
        ":6: admin.port: it takes 65535 at most, not 70000",
        ":11: plugins.mqtt.tcp: it takes true or false, not 1",
        ":10: plugins.mqtt.prot: unknown setting; did you mean 'port'?",
        ":15: plugins.native.port: it takes 0 or more, not -1",
    ]
    (level,) = [line for line in said if "log_level" in line]
    assert ":4: node.log_level: it takes 'debug', 'info'" in level


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[plugins.native]\nport = 9703\n", ":2: plugins.native.port: port 9703 is that of plugin"),
        ("[plugins.native]\nport = 1883\n", "port 1883 is that of plugins.mqtt.port too"),
        ("[admin]\nport = 9701\n", ":2: admin.port: port 9701 is that of meta.port too"),
        (
            '[meta]\nraft_port = 9700\nmembers = {node-1 = "127.0.0.1:9700"}\n',
            "port 9700 is that of meta.raft_port too",
        ),
        (
            '[[plugins.mqtt.listeners]]\nname = "ws"\ntransport = "websocket"\nport = 9700\n',
            "port 9700 is that of plugins.mqtt.listeners.0.port too",
        ),
        (
            '[node]\nhost = "127.0.0.1"\n[plugins.mqtt]\nhost = "0.0.0.0"\nport = 9703\n',
            ":5: plugins.mqtt.port: port 9703 is that of plugins.admin.port too",
        ),
        (
            '[plugins.native]\ntls_cert = "no.crt"\ntls_key = "no.key"\n',
            ":2: plugins.native.tls_cert: there is no file no.crt",
        ),
        (
            '[security]\n[[security.authenticators]]\nkind = "jwt"\nissuer = "i"\n'
            'key_file = "no.pem"\n',
            ":5: security.authenticators.0.key_file: there is no file no.pem",
        ),
        ("port = [\n", "not TOML"),
    ],
)
def test_what_a_start_would_refuse(tmp_path: Path, text: str, said: str) -> None:
    assert said in "\n".join(found(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[plugins.native]\nport = 0\n[admin]\nport = 0\n",
        "[admin]\nenabled = false\nport = 9700\n",
        "[plugins.mqtt]\nport = 9700\ntcp = false\n",
        '[plugins.mqtt]\nhost = "127.0.0.2"\nport = 9700\n',
        "[plugins.native]\nport = 9702\n",  # a node alone opens no Raft port
    ],
)
def test_what_is_right_passes(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_a_broker_that_is_no_member_must_know_members(tmp_path: Path) -> None:
    (said,) = found(tmp_path, '[node]\nroles = ["broker"]\n')
    assert "meta.join: it is empty" in said
    joined = '[node]\nroles = ["broker"]\n[meta]\njoin = ["10.0.0.1:9701"]\n'
    assert found(tmp_path, joined) == []
    (said,) = found(tmp_path, '[node]\nroles = ["leader"]\n')
    assert "node.roles" in said


@pytest.mark.parametrize("role", ["meta", "broker"])
def test_only_ports_of_the_nodes_roles_clash(tmp_path: Path, role: str) -> None:
    """A member alone opens no plugin's port, a broker alone none of the MetaService."""
    text = f'[node]\nroles = ["{role}"]\n[meta]\nport = 9703\njoin = ["10.0.0.1:9701"]\n'
    (said,) = found(tmp_path, text + "[plugins.native]\nport = 9703\n")
    assert ("plugins.admin.port" if role == "meta" else "plugins.native.port") in said


def test_plugins_that_fail_open_and_are_not_on_are_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[interceptors]\nfail_open = ["mqtt", "stmap"]\n')
    findings = check(file, {})
    assert not findings.errors
    said = [each for each in findings.warnings if "fail_open" in each]
    assert said == ["interceptors.fail_open names 'stmap', which is no plugin that is on"]
