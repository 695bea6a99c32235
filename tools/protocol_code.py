"""Code of the protocols, made from the `.proto` files, for every runtime that LakeMQ runs with.

What protoc writes asks for a runtime as new as protoc itself. The code below those lines has not
changed since the lowest versions in pyproject.toml, so it asks for those in place of its own.
`tests/integration/versions` compares it with what the tools of those versions write.
"""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parents[1]
PROTOS = (
    "lakemq/plugins/native/proto/security.proto",
    "lakemq/plugins/native/proto/native.proto",
    "lakemq/plugins/native/proto/admin.proto",
    "lakemq/plugins/native/proto/transactions.proto",
    "lakemq/plugins/native/proto/schedules.proto",
    "lakemq/plugins/native/proto/queues.proto",
    "lakemq/plugins/native/proto/metadata.proto",
    "lakemq/plugins/native/proto/schemas.proto",
    "lakemq/broker_core/cluster/proto/peer.proto",
    "lakemq/meta_service/proto/meta.proto",
    "lakemq/meta_service/proto/auth.proto",
    "lakemq/meta_service/proto/schemas.proto",
    "lakemq/meta_service/proto/discovery.proto",
)
_RUNTIME_CALL = re.compile(
    r"(ValidateProtobufRuntimeVersion\(\s+_runtime_version\.Domain\.PUBLIC,)\s+\d+,\s+\d+,\s+\d+,"
)
_RUNTIME_COMMENT = re.compile(r"^# Protobuf Python Version: .+$", re.MULTILINE)
_GRPC = re.compile(r"^GRPC_GENERATED_VERSION = .+$", re.MULTILINE)


@cache
def floor(package: str) -> str:
    """The lowest version of a dependency in pyproject.toml, as three numbers with dots."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (version,) = (
        match[1] for each in found if (match := re.match(rf"{package}>=([\d.]+)", each)) is not None
    )
    return ".".join([*version.split("."), "0", "0"][:3])


def with_oldest_runtime(text: str, version: str) -> str:
    """A `_pb2.py` that protobuf from `version` on may load."""
    numbers = ",".join(f"\n    {each}" for each in version.split("."))
    text, calls = _RUNTIME_CALL.subn(rf"\g<1>{numbers},", text)
    text, comments = _RUNTIME_COMMENT.subn(f"# Protobuf Python Version: {version}", text)
    if (calls, comments) != (1, 1):
        raise SystemExit("protoc writes its version in another way: see tools/protocol_code.py")
    return text


def with_oldest_grpc(text: str, version: str) -> str:
    """A `_pb2_grpc.py` that grpcio from `version` on may load."""
    text, found = _GRPC.subn(f"GRPC_GENERATED_VERSION = {version!r}", text)
    if found != 1:
        raise SystemExit(
            "grpcio-tools writes its version in another way: see tools/protocol_code.py"
        )
    return text


def generate_proto(proto: str, out: Path) -> list[Path]:
    """Run protoc from the repository's root, so that proto path and import path are the same.
    Returns the files, relative to `out`."""
    scripts = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        *(
            f"--{kind}_out={'quiet:' if 'mypy' in kind else ''}{out}"
            for kind in ("python", "grpc_python", "mypy", "mypy_grpc")
        ),
        str(ROOT / proto),
    ]
    if protoc.main(arguments):
        raise SystemExit(f"protoc failed on {proto}")
    stem = Path(proto).with_suffix("")
    messages, services = out / f"{stem}_pb2.py", out / f"{stem}_pb2_grpc.py"
    messages.write_text(with_oldest_runtime(messages.read_text(), floor("protobuf")))
    services.write_text(with_oldest_grpc(services.read_text(), floor("grpcio")))
    return [
        Path(f"{stem}{suffix}")
        for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
    ]
