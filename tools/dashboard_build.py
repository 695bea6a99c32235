"""Fetches the scripts of third parties that the dashboard serves: into the checkout (`make
dashboard-assets`), and when a wheel or a source archive is built.

npm fetches what `dashboard_assets/package-lock.json` pins by version and SHA-512, runs none of
it, and the files are copied to where the dashboard serves them; the repository has none of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).parents[1]
PINNED: Final = Path("tools/dashboard_assets")
FETCHED: Final = Path("build/dashboard-npm")
VENDOR: Final = Path("plugins/admin/dashboard/static/vendor")
SERVED: Final = {
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "htmx.LICENSE.txt": "htmx.org/LICENSE",
    "uPlot.iife.min.js": "uplot/dist/uPlot.iife.min.js",
    "uPlot.min.css": "uplot/dist/uPlot.min.css",
    "uPlot.LICENSE.txt": "uplot/LICENSE",
}
"""Name as it is served -> file below `node_modules`."""


def fetch(root: Path, *, for_tests: bool) -> None:
    """`for_tests`: axe too. Raises OSError, CalledProcessError: no npm, or it fetches nothing."""
    folder = root / FETCHED
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / PINNED, folder)
    words = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    if not for_tests:
        words.append("--omit=dev")
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    vendor = folder_of(root)
    vendor.mkdir(parents=True, exist_ok=True)
    for name, source in SERVED.items():
        shutil.copyfile(folder / "node_modules" / source, vendor / name)


def folder_of(root: Path) -> Path:
    """In a checkout, or in an unpacked source archive: that has no links."""
    packed = root / "lakemq" / VENDOR
    return root / VENDOR if (root / VENDOR).parent.is_dir() else packed


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch what is missing. Without npm the package has no plots, and is told to have none:
        `make dist` fails instead."""
        root = Path(self.root)
        if version == "editable" or all((folder_of(root) / name).is_file() for name in SERVED):
            return
        try:
            fetch(root, for_tests=False)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"The dashboard is packed without plots: npm: {error}")


if __name__ == "__main__":
    try:
        fetch(ROOT, for_tests=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"The dashboard's scripts were not fetched: {error}")
