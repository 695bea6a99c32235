"""Goal: LakeMQ installs and runs with the lowest and the newest packages that its bounds allow, and
beside others. Installs real environments: `make nightly` and `make versions` run it.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.node.node import NodeProcess
from tools.protocol_code import PROTOS, floor, with_oldest_grpc, with_oldest_runtime

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.skipif("LAKEMQ_VERSIONS" not in os.environ, reason="make versions sets up much"),
    pytest.mark.timeout(1800),
]
INSTALLED = {**os.environ, "PYTHONPATH": ""}
"""For processes that import what is installed, whoever runs the tests."""
NEIGHBOURS = ("dbt-core", "mlflow", "streamlit")
SUITES = (
    "tests/integration/native/test_native.py",
    "tests/integration/mqtt/test_mqtt_transports.py",
    "tests/integration/meta/test_meta_member.py",
    "tests/unit/native/sdk",
    "tests/unit/meta_service",
)
TEST_NEEDS = (
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "hypothesis",
    "aiomqtt",
    "paho-mqtt",
    "psutil",
)
PYTHONS = [
    (f"3.{minor}", platform) for minor in (11, 12, 13, 14) for platform in ("macos", "windows")
]


def uv(*words: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "uv", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Distribution -> its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "tools" / "client"):
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
            cwd=source, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def environment(folder: Path, *requirements: str) -> str:
    """The Python of a new environment that holds them."""
    uv("venv", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    uv("pip", "install", "--python", python, *requirements)
    return python


def installed(folder: Path, resolution: str, wheel: Path) -> str:
    """The Python of a new environment with a wheel and all that it needs, in versions that
    `resolution` says."""
    # Needs of a wheel would be indirect ones, of which uv takes the newest.
    python = environment(folder, "--resolution", resolution, *needs(wheel))
    uv("pip", "install", "--python", python, "--no-deps", str(wheel))
    return python


def needs(wheel: Path, *extras: str) -> list[str]:
    """Requirements of a wheel, and those of extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    found = [Requirement(each) for each in metadata.get_all("Requires-Dist", [])]
    wanted = [{"extra": extra} for extra in ("", *extras)]
    return [
        f"{each.name}{each.specifier}"
        for each in found
        if each.marker is None or any(map(each.marker.evaluate, wanted))
    ]


def packages(python: str) -> dict[str, str]:
    """Name -> version of what is installed."""
    lines = uv("pip", "freeze", "--python", python).splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def command(python: str, *words: str) -> str:
    done = subprocess.run(
        [python, "-m", "lakemq", *words], capture_output=True, text=True, check=False, cwd="/",
        env=INSTALLED,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_a_node_runs_with_all_that_bounds_allow(
    resolution: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    python = installed(tmp_path / "venv", resolution, wheels["lakemq"])
    found = packages(python)
    low = {name: floor(name) for name in ("protobuf", "grpcio")}
    if resolution == "lowest-direct":
        assert {name: found[name] for name in low} == low
    else:
        assert all(found[name] != version for name, version in low.items())
    with NodeProcess(
        tmp_path / "node", environment={"PYTHONPATH": ""}, python=python, cwd=tmp_path
    ) as node:
        at = ("--bootstrap", node.native)
        command(python, "topic", "create", "t", *at)
        command(python, "produce", "t", "--value", "x", *at)
        assert command(python, "consume", "t", *at) == "x\n"
    pins = [f"{name}=={version}" for name, version in found.items()]
    constraints = tmp_path / "installed.txt"
    constraints.write_text("\n".join(pins))
    schemas = needs(wheels["lakemq"], "schemas")
    uv("pip", "install", "--python", python, "-c", str(constraints), *TEST_NEEDS, *schemas)
    suites = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *SUITES],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert suites.returncode == 0, suites.stdout[-5000:]


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_a_client_is_seven_packages(
    resolution: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    wheel = wheels["lakemq-client"]
    python = installed(tmp_path / "venv", resolution, wheel)
    assert set(packages(python)) <= {
        "google-crc32c", "grpcio", "lz4", "numpy", "protobuf", "typing-extensions", "zstandard",
    }  # fmt: skip
    with NodeProcess(tmp_path / "node") as node:
        script = (
            f"import lakemq\nwith lakemq.connect({node.native!r}) as client:\n"
            " client.create_topic('t')\n client.send('t', b'x')\n"
            " print([each.value for each in client.consume('t')])"
        )
        done = subprocess.run(
            [python, "-c", script], capture_output=True, text=True, check=False, cwd="/",
            env=INSTALLED,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("[b'x']\n", "")
        commands = needs(wheel, "cli")
        uv("pip", "install", "--python", python, "--resolution", resolution, *commands)
        assert command(python, "consume", "t", "--bootstrap", node.native) == "x\n"


@pytest.mark.parametrize(("version", "platform"), PYTHONS)
def test_a_client_is_compiled_for_other_systems(
    version: str, platform: str, wheels: dict[str, Path]
) -> None:
    """Wheels alone: who has no compiler can install it."""
    asked = f"lakemq-client[cli] @ {wheels['lakemq-client'].as_uri()}\n"
    found = uv(
        "pip", "compile", "-", "--python-version", version, "--python-platform", platform,
        "--only-binary", ":all:", stdin=asked,
    )  # fmt: skip
    assert "grpcio==" in found


def test_the_newest_of_the_data_stack_installs_beside(wheels: dict[str, Path]) -> None:
    """In the versions that it has without LakeMQ, each alone and all at once."""
    ours = f"lakemq[spark,schemas,tiering,otlp] @ {wheels['lakemq'].as_uri()}"
    for stack in (*((each,) for each in NEIGHBOURS), NEIGHBOURS):
        alone = resolved(*stack)
        beside = resolved(ours, *stack)
        assert {name: beside[name] for name in stack} == {name: alone[name] for name in stack}


def resolved(*requirements: str) -> dict[str, str]:
    found = uv("pip", "compile", "-", stdin="\n".join(requirements))
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", found, re.MULTILINE))


def test_protocol_code_is_that_of_the_oldest_tools(tmp_path: Path) -> None:
    """What `tools/protocol_code.py` writes is what grpcio-tools of the floor writes: messages
    byte by byte, services as Python understands them."""
    version = floor("grpcio")
    python = environment(tmp_path / "venv", f"grpcio-tools=={version}", "setuptools<81")
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [python, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={out}",
         f"--grpc_python_out={out}", *(str(ROOT / proto) for proto in PROTOS)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for proto in PROTOS:
        stem = proto.removesuffix(".proto")
        made, ours = (out / f"{stem}_pb2.py").read_text(), (ROOT / f"{stem}_pb2.py").read_text()
        assert with_oldest_runtime(made, floor("protobuf")) == ours
        (asked,) = re.findall(r"^# Protobuf Python Version: (.+)$", made, re.MULTILINE)
        assert _numbers(asked) <= _numbers(floor("protobuf"))
        made = with_oldest_grpc((out / f"{stem}_pb2_grpc.py").read_text(), version)
        assert _meaning(made) == _meaning((ROOT / f"{stem}_pb2_grpc.py").read_text())


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")]


def _meaning(text: str) -> str:
    """Older tools write `class X(object)`, and `f''` where nothing is filled in."""
    return ast.unparse(ast.parse(text.replace("(object):", ":"))).replace("f'", "'")
