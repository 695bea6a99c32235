"""Files that are made from the code: write them, or check that they are fresh.

`python -m tools.generated --write | --check`
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from lakemq.cli.configuration.commented_file import commented_file
from tests.support.mqtt import conformance as mqtt_conformance
from tools.clients_page import clients_page
from tools.commands_page import commands_page
from tools.configuration_page import configuration_page
from tools.metrics_page import metrics_page
from tools.openapi_page import openapi_page
from tools.protocol_code import PROTOS, generate_proto
from tools.sdk_reference import sdk_reference

ROOT = Path(__file__).parents[1]
PAGES = {
    "docs/openapi.json": openapi_page,
    "docs/clients.md": clients_page,
    "docs/commands.md": commands_page,
    "docs/configuration.md": configuration_page,
    "docs/lakemq.toml": lambda: commented_file(built_in=True),
    "docs/metrics.md": metrics_page,
    "docs/mqtt-conformance.md": mqtt_conformance.page,
    "docs/sdk-reference.md": sdk_reference,
}


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
