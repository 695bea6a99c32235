"""Files that are made from the code: write them, or check that they are fresh.

`python -m tools.generated --write | --check`
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

from tests.support.mqtt import conformance as mqtt_conformance
from tools.commands_page import commands_page
from tools.configuration_page import configuration_page
from tools.metrics_page import metrics_page
from tools.openapi_page import openapi_page
from tools.sdk_reference import sdk_reference

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
PAGES = {
    "docs/openapi.json": openapi_page,
    "docs/commands.md": commands_page,
    "docs/configuration.md": configuration_page,
    "docs/metrics.md": metrics_page,
    "docs/mqtt-conformance.md": mqtt_conformance.page,
    "docs/sdk-reference.md": sdk_reference,
}


def generate_proto(proto: str, out: Path) -> list[Path]:
    """Run protoc from the repository's root, so that proto path and import path are the same."""
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
    return [
        Path(f"{stem}{suffix}")
        for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
    ]


def stale() -> list[str]:
    """Generated files that differ from what would be generated now."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for proto in PROTOS:
            for path in generate_proto(proto, Path(folder)):
                written = ROOT / path
                fresh = (Path(folder) / path).read_bytes()
                if not written.exists() or written.read_bytes() != fresh:
                    found.append(str(path))
    for page, make in PAGES.items():
        written = ROOT / page
        if not written.exists() or written.read_text() != make():
            found.append(page)
    return found


def write() -> None:
    for proto in PROTOS:
        generate_proto(proto, ROOT)
    for page, make in PAGES.items():
        (ROOT / page).write_text(make())


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        write()
    elif sys.argv[1:] == ["--check"]:
        if found := stale():
            raise SystemExit(f"not fresh: {', '.join(found)}; run 'make generate' and commit")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
