"""A plugin of `lakemq plugin new`, installed for whoever has its folder on the path."""

from __future__ import annotations

from pathlib import Path

from lakemq.cli.plugins.commands import write_plugin


class InstalledPlugin:
    """`write` and `replace` change its code as an upgrade would, `version` what it is shown as."""

    def __init__(self, folder: Path, name: str = "sized") -> None:
        self.folder = folder
        self.name = name
        self.package = folder / f"lakemq_{name}"
        write_plugin(name, folder)
        self._about = folder / f"lakemq_{name}.dist-info"
        self._about.mkdir()
        entry = f"[lakemq.plugins]\n{name} = lakemq_{name}.plugin\n"
        (self._about / "entry_points.txt").write_text(entry)
        self.version("0.1.0")

    def version(self, version: str) -> None:
        text = f"Metadata-Version: 2.1\nName: lakemq-{self.name}\nVersion: {version}\n"
        (self._about / "METADATA").write_text(text)

    def write(self, module: str, text: str) -> None:
        """A module of its package; its size changes, so that Python reads it again though the clock
        of the file system has not gone on."""
        path = self.package / f"{module}.py"
        before = path.stat().st_size if path.exists() else 0
        path.write_text(text + "\n" * (len(text.encode()) == before))

    def replace(self, module: str, before: str, after: str) -> None:
        text = (self.package / f"{module}.py").read_text()
        assert before in text
        self.write(module, text.replace(before, after))
