"""Goal: docs/from-mosquitto.md is true: Mosquitto and a node, each configured as the page says,
answer its commands alike, and the bridge of the page brings retained messages over.
"""

from __future__ import annotations

import getpass
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from lakemq.cli.user_commands import user
from tests.support.mqtt.certificates import Authority
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.ports import free_port
from tests.support.remote_brokers import MOSQUITTO, BrokerProcess
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "from-mosquitto.md"
WAIT_S = 60
NAMES = ("backend", "pump-7", "lakemq")
pytestmark = pytest.mark.skipif(
    not (MOSQUITTO and shutil.which("mosquitto_pub") and shutil.which("mosquitto_passwd")),
    reason="Mosquitto is not installed (apt-get install mosquitto mosquitto-clients)",
)


class Both(NamedTuple):
    """Both brokers, their ports for plain text and TLS, and the folder of the certificates."""

    folder: Path
    printed: tuple[str, str]
    """What the page's commands print and complain of at Mosquitto. They ran before the bridge was
    there, which would carry their messages to the node."""
    mosquitto: tuple[int, int]
    node: tuple[int, int]
    process: NodeProcess


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("both")
    authority = Authority(folder, "devices-ca")
    authority.sign("/CN=server", "server")
    authority.sign("/CN=pump-9", "pump-9")
    theirs = free_port(), free_port()
    remote = mosquitto_of_the_page(folder, *theirs).start()
    try:
        run(
            "mosquitto_pub -p 1883 -u lakemq -P secret -q 1 -r -t devices/kept -m k", folder, theirs
        )
        (script,) = blocks(PAGE, "bash")
        printed = run(script, folder, theirs)
        with node_of_the_page(folder, theirs[0]) as process:
            ours = process.mqtt_port, int(process.addresses["mqtts"].rpartition(":")[2])
            yield Both(folder, printed, theirs, ours, process)
    finally:
        remote.stop(signal.SIGKILL)


def mosquitto_of_the_page(folder: Path, plain: int, tls: int) -> BrokerProcess:
    (config,), (acl,) = blocks(PAGE, "conf"), blocks(PAGE, "acl")
    for shown, real in (
        ("1883 0.0.0.0", f"{plain} 127.0.0.1"),
        ("8883 0.0.0.0", f"{tls} 127.0.0.1"),
        ("/var/lib/mosquitto/", f"{folder}/"),
        ("/etc/mosquitto/", f"{folder}/"),
    ):
        assert shown in config
        config = config.replace(shown, real)
    (folder / "mosquitto.conf").write_text(f"{config}log_type none\nuser {getpass.getuser()}\n")
    (folder / "acl").write_text(acl)
    (folder / "passwd").touch()
    for name in NAMES:
        subprocess.run(
            ["mosquitto_passwd", "-b", str(folder / "passwd"), name, "secret"],
            check=True, capture_output=True,
        )  # fmt: skip
    assert MOSQUITTO is not None
    return BrokerProcess([MOSQUITTO, "-c", str(folder / "mosquitto.conf")], plain)


def node_of_the_page(folder: Path, remote: int) -> NodeProcess:
    settings, bridge = blocks(PAGE, "toml")
    for shown, real in (
        ("0.0.0.0", "127.0.0.1"), ("port = 1883", "port = 0"), ("port = 8883", "port = 0"),
        ("/etc/lakemq/", f"{folder}/"), ("/var/lib/lakemq", f"{folder}/data"),
    ):  # fmt: skip
        assert shown in settings
        settings = settings.replace(shown, real)
    for name in NAMES[:2]:
        done = CliRunner().invoke(
            user, ["add", name, "--file", str(folder / "users"), "--password-stdin"],
            input="secret\n",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
    others = PORTS_FREE.replace("[plugins.mqtt]\nport = 0\n", "")
    bridge = bridge.replace("127.0.0.1:1884", f"127.0.0.1:{remote}")
    return NodeProcess(
        folder / "node", settings + bridge + others, {"MOSQUITTO_PASSWORD": "secret"}
    )


def run(script: str, folder: Path, ports: tuple[int, int]) -> tuple[str, str]:
    """What a script prints, and what it says on standard error, at the broker of these ports."""
    for shown, real in zip(("1883", "8883"), ports, strict=True):
        script = script.replace(f"-p {shown}", f"-h 127.0.0.1 -p {real}")
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False,
        cwd=folder,
    )  # fmt: skip
    return done.stdout, done.stderr


def test_the_commands_print_the_same_at_both(both: Both) -> None:
    (script,) = blocks(PAGE, "bash")
    theirs, refused = both.printed
    assert re.fullmatch(
        r"devices/pump-7/bar 2.1\ndevices/pump-9/bar 3.4\nmosquitto version [\d.]+\n", theirs
    ), refused
    ours, ours_refused = run(script, both.folder, both.node)
    assert ours.partition("LakeMQ")[0] == theirs.partition("mosquitto")[0], ours_refused
    assert ours_refused == refused
    assert refused.count("Not authorized") == 1


def test_subscriptions_are_judged_whole_here_and_not_there(both: Both) -> None:
    ask = "mosquitto_sub -p 1883 -u pump-7 -P secret -V 5 -q 1 -t '#' -E"
    assert "denied" not in "".join(run(ask, both.folder, both.mosquitto))
    assert "All subscription requests were denied" in "".join(run(ask, both.folder, both.node))
    # As the page says of a rule that denies: it would stand against `devices/#` too.
    settings = tomllib.loads(blocks(PAGE, "toml")[0])["security"]
    (denied,) = (rule for rule in settings["rules"] if not rule.get("allow", True))
    assert denied["operations"] == ["publish"]
    secret = "mosquitto_pub -p 1883 -u backend -P secret -V 5 -q 1 -t devices/a/secret -m x"
    for ports in (both.mosquitto, both.node):
        assert "Not authorized" in run(secret, both.folder, ports)[1]


def test_the_bridge_brings_retained_messages_over(both: Both) -> None:
    kept = "mosquitto_sub -p 1883 -u backend -P secret -t devices/kept -C 1 -W 30"
    assert run(kept, both.folder, both.node)[0] == "k\n", both.process.log_file.read_text()
