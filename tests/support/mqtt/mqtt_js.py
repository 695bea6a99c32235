"""mqtt.js, which npm installs for a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MQTT_JS = "5.16.0"


def installed(folder: Path) -> Path:
    """The folder, with mqtt.js in it. Skips the test, with the reason, where that is not
    possible."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed")
    run = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", f"mqtt@{MQTT_JS}"],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if run.returncode:
        pytest.skip(f"npm could not install mqtt@{MQTT_JS}: {run.stderr.strip()[-200:]}")
    return folder
