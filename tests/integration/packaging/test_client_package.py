"""Goal: `lakemq-client` has all that the SDK and its commands need and nothing else, and they run
where a broker does not: on Windows. A node runs on macOS.

Real installations are in `test_versions.py`, which `make nightly` runs; here the wheel is unpacked,
and what other systems and environments lack is taken away from Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import lakemq
from lakemq.plugins.mqtt.wire import codec
from tests.support.node.node import NodeProcess
from tests.support.platforms.compiled import is_compiled

pytestmark = pytest.mark.skipif(
    is_compiled(codec), reason="a wheel of the client is made where nothing is compiled"
)
ROOT = Path(__file__).parents[3]
PLATFORMS = ROOT / "tests" / "support" / "platforms"
CLI = {"typer", "rich"}
NOT_OF_A_CLIENT = (
    "aiohttp", "argon2", "cryptography", "fcntl", "jwt", "msgpack", "pluggy",
    "prometheus_client", "pysyncobj", "rocksdict", "uvloop", "websockets",
)  # fmt: skip
SDK = """
import sys
import lakemq

with lakemq.connect(sys.argv[1]) as client:
    client.create_topic("sdk")
    client.send("sdk", b"x", key=b"k")
    print([record.value for record in client.consume("sdk")], lakemq.__version__)
assert not {"pydantic", "rich", "typer"} & sys.modules.keys()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT / "tools" / "client", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("lakemq_client-*.whl")
    return wheel


@pytest.fixture(scope="module")
def client(wheel: Path) -> Path:
    """A folder for PYTHONPATH, with the client alone, for a Python without the broker's needs."""
    folder = wheel.with_name("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    blocked = "\n".join(f"sys.modules[{name!r}] = None" for name in NOT_OF_A_CLIENT)
    windows = (PLATFORMS / "windows" / "sitecustomize.py").read_text()
    (folder / "sitecustomize.py").write_text(f"{windows}\n{blocked}\n")
    return folder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """It runs without what macOS lacks."""
    paths = os.pathsep.join((str(PLATFORMS / "macos"), str(ROOT)))
    with NodeProcess(tmp_path_factory.mktemp("node"), environment={"PYTHONPATH": paths}) as node:
        yield node


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd="/",
        env={**os.environ, "PYTHONPATH": str(path)},
    )  # fmt: skip


def printed(path: Path, *words: str) -> str:
    done = run(path, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_files_of_the_whole_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert all(archive.read(name) == (ROOT / name).read_bytes() for name in files)
    folders = {
        "/".join(name.split("/")[:3]) for name in files if name.startswith("lakemq/plugins/")
    }
    assert folders == {"lakemq/plugins/__init__.py", "lakemq/plugins/native"}
    assert not any("listener" in name or "/server/" in name or "spark" in name for name in files)
    assert "lakemq/plugins/native/proto/native_pb2.pyi" in files and "lakemq/py.typed" in files


def test_its_bounds_are_those_of_the_whole_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        metadata = message_from_string(archive.read(name).decode())
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(each) for each in metadata.get_all("Requires-Dist", [])}
    always = {each for each in needed if each.marker is None}
    assert len(always) == 6 and always < {Requirement(each) for each in whole["dependencies"]}
    assert metadata["Version"] == lakemq.__version__
    assert metadata["Project-URL"].startswith("Homepage, https://")


@pytest.mark.parametrize("system", ["windows", "client"])
def test_sdk_and_commands_reach_a_node(
    system: str, client: Path, node: NodeProcess, tmp_path: Path
) -> None:
    """`client`: the unpacked wheel; `windows`: the whole package. The node has no fdatasync."""
    folder = client
    if system == "windows":
        folder = tmp_path
        (folder / "lakemq").symlink_to(ROOT / "lakemq")
        (folder / "sitecustomize.py").symlink_to(PLATFORMS / "windows" / "sitecustomize.py")
    script = SDK.replace('"sdk"', f'"sdk-{system}"')
    assert printed(folder, "-c", script, node.native) == f"[b'x'] {lakemq.__version__}\n"
    at = ("--bootstrap", node.native)
    values = tmp_path / "values.txt"
    values.write_text("a\nb\n")
    printed(folder, "-m", "lakemq", "produce", f"sdk-{system}", "--file", str(values), *at)
    assert printed(folder, "-m", "lakemq", "consume", f"sdk-{system}", *at) == "x\na\nb\n"
    printed(folder, "-m", "lakemq", "proto", str(tmp_path / "protos"))
    assert "rpc Produce(" in (tmp_path / "protos/lakemq/native/v1/native.proto").read_text()
    assert "Traceback" not in node.log_file.read_text()
    assert printed(folder, "-m", "lakemq", "--version") == f"lakemq {lakemq.__version__}\n"


def test_a_client_says_what_it_is_not(client: Path, tmp_path: Path) -> None:
    started = run(client, "-m", "lakemq", "start")
    assert (started.returncode, started.stderr) == (
        2, "lakemq: start is no command of lakemq-client; pip install lakemq has more\n"
    )  # fmt: skip
    without = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in CLI)
    (tmp_path / "sitecustomize.py").write_text(without)
    (tmp_path / "lakemq").symlink_to(client / "lakemq")
    read = run(tmp_path, "-c", "import lakemq; lakemq.read")
    assert "AttributeError: lakemq.read needs more: pip install 'lakemq[spark]'" in read.stderr
    avro = """import sys; sys.modules["fastavro"] = None
from lakemq.broker_core.api.schemas.formats import open_schema
open_schema("avro", '"int"')
"""
    hint = "pip install '{}[schemas]'"
    assert hint.format("lakemq-client") in run(tmp_path, "-c", avro).stderr
    assert hint.format("lakemq") in run(ROOT, "-c", avro).stderr
    asked = run(tmp_path, "-m", "lakemq", "topic", "list")
    assert asked.returncode == 1 and "pip install 'lakemq-client[cli]'" in asked.stderr
    assert asked.stderr.count("\n") == 1


def test_a_node_on_windows_says_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "lakemq").symlink_to(ROOT / "lakemq")
    (tmp_path / "sitecustomize.py").symlink_to(PLATFORMS / "windows" / "sitecustomize.py")
    started = run(tmp_path, "-m", "lakemq", "start")
    assert started.returncode == 1 and started.stderr.startswith("lakemq: a node runs on Linux and")
    assert started.stderr.count("\n") == 1
