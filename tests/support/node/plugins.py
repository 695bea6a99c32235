"""Plugins of a test that a node finds without an installation."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]


def plugin_path(folder: Path, name: str, source: str) -> dict[str, str]:
    """Writes the plugin's module and the metadata of its distribution into `folder`. The variables
    of a node that has it: `[plugins.<name>]` switches it on."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lakemq.plugins]\n{name} = {name}_plugin\n")
    (folder / f"{name}_plugin.py").write_text(source)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}
