"""Goal: what `examples/deploy` gives operators works: the unit, the image, one node and three."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import lakemq
from lakemq.cli.config_findings import check
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_port

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "examples" / "deploy"
COMMAND = Path(sys.executable).with_name("lakemq")
COMPOSE = ("compose.yaml", "compose-cluster.yaml")


def run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# ------------------------------------------------------------ systemd


def test_the_unit_is_valid_and_confined(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "lakemq.service"
    text = (DEPLOY / "lakemq.service").read_text()
    unit.write_text(text.replace("/opt/lakemq/bin/lakemq", str(COMMAND)))
    assert run("systemd-analyze", "verify", "--man=no", unit) == ""
    # 0 is closed, 100 open: what is left is that it may use the network and this user's files.
    run("systemd-analyze", "security", "--offline=true", "--threshold=15", unit)


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    """Ready once clients are served, and again that it stops."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30)
        node = NodeProcess(tmp_path, environment={"NOTIFY_SOCKET": address}).start()
        assert manager.recv(100) == b"READY=1"
        assert node.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"


def test_a_node_starts_without_its_service_manager(tmp_path: Path) -> None:
    gone = {"NOTIFY_SOCKET": str(tmp_path / "gone")}
    node = NodeProcess(tmp_path, environment=gone).start()
    assert node.stop() == 0 and "NOTIFY_SOCKET" in node.log_file.read_text()


# ------------------------------------------------------------ containers


def test_the_image_is_built_from_what_is_there() -> None:
    """hadolint finds nothing; what is copied exists; all of our ports and no others are exposed."""
    hadolint = Path(sys.executable).with_name("hadolint")
    dockerfile = DEPLOY / "Dockerfile"
    assert run(hadolint, dockerfile) == ""
    text = dockerfile.read_text()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M):
        assert (ROOT / line).exists(), line
    exposed = re.findall(r"^EXPOSE (.+)$", text, re.M)[0].split()
    assert exposed == ["1883", "9700", "9701", "9702", "9703", "9704"]


@pytest.mark.parametrize("file", COMPOSE)
def test_services_have_what_they_name(file: str) -> None:
    """Volumes are declared, files exist, and each node's configuration is valid with its own
    variables."""
    compose = yaml.safe_load((DEPLOY / file).read_text())
    for name, service in compose["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            there = (DEPLOY / source).exists() if source[0] == "." else source in compose["volumes"]
            assert there, f"{name}: {volume}"
    for name, service in nodes_of(compose).items():
        errors = [str(each) for each in check(*configuration(service)).errors]
        # Certificates are there once the containers run.
        assert [each for each in errors if "no file /certificates/" not in each] == [], name


@pytest.mark.parametrize("file", COMPOSE)
def test_published_ports_are_those_that_clients_are_told(file: str) -> None:
    compose = yaml.safe_load((DEPLOY / file).read_text())
    for name, service in nodes_of(compose).items():
        path, environment = configuration(service)
        told = environment.get("LAKEMQ_PLUGINS__NATIVE__PORT", "9700")
        assert f"127.0.0.1:{told}:{told}" in service["ports"], name
        native = tomllib.loads(path.read_text())["plugins"]["native"]
        host = environment.get("LAKEMQ_PLUGINS__NATIVE__ADVERTISED_HOST")
        assert (host or native["advertised_host"]) in ("localhost", name)


def test_three_nodes_with_certificates_of_their_own(tmp_path: Path) -> None:
    """`cluster.toml` and `certificates.sh` as they are, but for addresses of this machine."""
    certificates = tmp_path / "certificates"
    for _ in range(2):  # what is there stays
        run("sh", DEPLOY / "certificates.sh", certificates, "n1", "n2", "n3")
    text = (DEPLOY / "cluster.toml").read_text()
    raft = {name: free_port() for name in ("n1", "n2", "n3")}
    for name, port in raft.items():
        text = text.replace(f"{name}:9702", f"127.0.0.1:{port}")
    text = text.replace("0.0.0.0", "127.0.0.1").replace("/certificates", str(certificates))
    compose = yaml.safe_load((DEPLOY / "compose-cluster.yaml").read_text())
    nodes = []
    for name, service in nodes_of(compose).items():
        variables = {
            key: value.replace("/certificates", str(certificates))
            for key, value in service["environment"].items()
        }
        here = {
            "META__PORT": "0", "META__RAFT_PORT": str(raft[name]), "META__ADVERTISE_API": "",
            "CLUSTER__ADVERTISE": "", "ADMIN__PORT": "0", "PLUGINS__MQTT__PORT": "0",
            "PLUGINS__NATIVE__PORT": "0", "PLUGINS__NATIVE__ADVERTISED_HOST": "localhost",
        }  # fmt: skip
        variables |= {f"LAKEMQ_{key}": value for key, value in here.items()}
        nodes.append(NodeProcess(tmp_path / name, text, variables))
    with ExitStack() as stack, ThreadPoolExecutor(len(nodes)) as threads:
        for node in nodes:
            stack.callback(node.kill)
        list(threads.map(NodeProcess.start, nodes))
        tls = lakemq.Tls(ca=certificates / "nodes-ca.pem", server_name="lakemq")
        with lakemq.connect([node.native for node in nodes], tls=tls) as client:
            client.create_topic("readings")
            client.send("readings", b"21.5")
            nodes[0].kill()
            client.send("readings", b"21.6")
            assert [record.value for record in client.consume("readings")] == [b"21.5", b"21.6"]


def nodes_of(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that are nodes, by name."""
    return {name: each for name, each in compose["services"].items() if name != "certificates"}


def configuration(service: dict[str, Any]) -> tuple[Path, dict[str, str]]:
    """The file that the service reads, and its variables."""
    file = Path(service.get("command", ["container.toml"])[-1]).name
    return DEPLOY / file, dict(service.get("environment", {}))
