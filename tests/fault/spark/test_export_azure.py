"""Goal: a Delta table in Azure Blob Storage is as exact as on a disk: kill -9 at any step loses and
repeats no row. The server is Azurite, on 127.0.0.1.

`make nightly` installs it with npm into build/azurite; elsewhere the test is skipped.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from lakemq.spark_plugin.export.job.run import audit_target
from lakemq.spark_plugin.export.maintenance.vacuum import vacuum
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.cluster.load import until
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_port
from tests.support.spark.killed_export import POINTS, ends, start

AZURITE = Path(__file__).parents[3] / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_EXPORT_KILLS"), reason="set LAKEMQ_EXPORT_KILLS=1"
    ),
    pytest.mark.skipif(
        not AZURITE.exists() or shutil.which("node") is None, reason="Azurite is not installed"
    ),
]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Which every Azurite has; documented by Microsoft."""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Of a server that has the container `lake`."""
    from pyarrow import fs

    port = free_port()
    program = [AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", tmp_path,
               "--silent", "--skipApiVersionCheck", "--disableTelemetry"]  # fmt: skip
    server = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(port))
        host = f"127.0.0.1:{port}"
        fs.AzureFileSystem(
            ACCOUNT, account_key=KEY, blob_storage_authority=host, blob_storage_scheme="http",
            dfs_storage_authority=host, dfs_storage_scheme="http",
        ).create_dir("lake")  # fmt: skip
        yield f"http://{host}/{ACCOUNT}"
    finally:
        server.kill()
        server.wait()


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_delta_is_killed_at_every_step(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # delta-rs does without what Azurite lacks (lists that begin behind a name) if it knows of it.
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", endpoint.rpartition("/")[0])
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    target = Target("delta", path=f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/t")
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        given = {
            "bootstrap": node.native, "topic": "t", "target": dataclasses.asdict(target),
            "export_id": "e", "format": "json", "value_schema": "n bigint", "commit_rows": 200,
            "compact_files": 1,
        }  # fmt: skip
        client.create_topic("t", partitions=1)
        for number, point in enumerate(POINTS):
            values = [
                b"bad" if n % 9 == 4 else b'{"n":%d}' % n
                for n in range(300 * number, 300 * (number + 1))
            ]
            client.send_batch("t", lakemq.Columns(values))
            if point == "in_orphans":  # needs a folder to delete
                assert ends(start(given, "in_task")) == -signal.SIGKILL
            assert ends(start(given, point)) == -signal.SIGKILL, point
        assert ends(start(given)) == 0
        vacuum(open_table(target, None), 0)
        [found] = audit_target(node.native, "t", target, "e", "", by_key=False)
    assert found.complete and found.records == 300 * len(POINTS), found.sentence("t")
    assert found.dead_letters > 0
    print(f"delta on Azurite: killed at {len(POINTS)} steps. {found.sentence('t')}")
