"""What of the repository goes into `lakemq-client`: the SDK, its commands, and the modules that
they import. Nothing is listed by hand but where to begin, so that no module is missing or idle.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SDK: Final = "lakemq.plugins.native.sdk"
BEGIN: Final = ("lakemq.__main__", "lakemq.cli.client.commands")
WHOLE_ONLY: Final = frozenset({"lakemq.cli.commands", "lakemq.cli.start", "lakemq.runtime"})
"""What `lakemq.cli.main` imports only where the whole package is installed."""
DEPENDENCIES: Final = ("google-crc32c", "grpcio", "lz4", "numpy", "protobuf", "zstandard")
EXTRAS: Final = {"cli": ("rich", "typer")}
"""Extra -> dependencies of the whole package."""
SHARED_EXTRAS: Final = ("schemas", "tiering")
"""Those of the whole package that the SDK uses too."""


def root_of(folder: str) -> Path:
    """The top of the repository, or of its unpacked source archive."""
    return Path(folder).resolve().parents[1]


def modules_of(root: Path) -> dict[str, Path]:
    """Name -> file of every module that the client has, with the packages above it."""
    found: dict[str, Path] = {}
    sdk = root.joinpath(*SDK.split("."))
    waiting = [*BEGIN, *(_name(root, path) for path in sorted(sdk.rglob("*.py")))]
    while waiting:
        name = waiting.pop()
        file = _file(root, name)
        if name in found or name in WHOLE_ONLY or file is None:
            continue
        found[name] = file
        waiting += [name.rpartition(".")[0], *_imported(ast.parse(file.read_bytes()))]
    return found


def _beside(file: Path) -> tuple[Path, Path]:
    """What may belong to a module: its types, and the protocol that it was made from."""
    return file.with_suffix(".pyi"), file.with_name(f"{file.stem.removesuffix('_pb2')}.proto")


def _name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _file(root: Path, name: str) -> Path | None:
    """None: not a module of ours."""
    if name.partition(".")[0] != "lakemq":
        return None
    path = root.joinpath(*name.split("."))
    return next(
        (each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None
    )


def _imported(tree: ast.AST) -> Iterator[str]:
    """What import statements may mean as modules, but for those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        yield from _imported(node)


class ClientBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files, and the mark that they are typed."""
        if version == "editable":
            raise SystemExit("lakemq-client has no editable install: pip install -e . at the top")
        root = root_of(self.root)
        files = [root / "lakemq" / "py.typed"]
        for file in modules_of(root).values():
            files += [file, *filter(Path.is_file, _beside(file))]
        build_data["force_include"].update(
            {str(file): file.relative_to(root).as_posix() for file in files}
        )


class ClientMetadataHook(MetadataHookInterface):
    """Takes what both distributions have in common from the whole one."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Version, URLs, classifiers, and dependencies with their bounds."""
        root = root_of(self.root)
        whole = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        bounds = {re.split(r"[<>=!~; \[]", each)[0]: each for each in whole["dependencies"]}
        extras = whole["optional-dependencies"]
        text = (root / "lakemq" / "__init__.py").read_text()
        metadata["version"] = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]
        metadata["urls"] = whole["urls"]
        metadata["classifiers"] = [
            *(each for each in whole["classifiers"] if "Operating System" not in each),
            "Operating System :: OS Independent",
        ]
        metadata["dependencies"] = _chosen(bounds, DEPENDENCIES)
        metadata["optional-dependencies"] = {
            **{extra: _chosen(bounds, names) for extra, names in EXTRAS.items()},
            **{extra: extras[extra] for extra in SHARED_EXTRAS},
        }


def _chosen(bounds: dict[str, str], names: Iterable[str]) -> list[str]:
    return [bounds[name] for name in names]
