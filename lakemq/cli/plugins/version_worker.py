"""One version of a plugin in a process of its own: records come in, what its interceptors make of
them goes out. Run as a module by `version_process`.

A frame in either direction is its length (u32, big-endian) and as many bytes: a line of JSON, and
behind it a record batch (`docs/formats/record-batch.md`) or nothing. The first frame that goes out
says which version it is, or why there is none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Any, BinaryIO, Final

from opentelemetry.metrics import NoOpMeter

from lakemq.broker_core.api.errors import (
    InterceptorFailed,
    InvalidRequest,
    LakeMQError,
    PluginError,
)
from lakemq.broker_core.api.hooks import ENTRY_POINT_GROUP
from lakemq.broker_core.api.ports import Interceptor, PluginContext
from lakemq.broker_core.api.records.batch import BODY_MAX_BYTES, RecordBatch, encode
from lakemq.broker_core.api.types import Columns, Principal
from lakemq.broker_core.configuration.config import load_config
from lakemq.broker_core.plugin_host import PluginHost, PluginPoint
from lakemq.broker_core.publishing.interception import Chain, Interception, Piece

LENGTH: Final = struct.Struct(">I")
FRAME_MAX_BYTES: Final = BODY_MAX_BYTES + (16 << 20)


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """(JSON, record batch); None at the end. Raises InvalidRequest."""
    size = stream.read(LENGTH.size)
    if len(size) < LENGTH.size:
        return None
    (count,) = LENGTH.unpack(size)
    if count > FRAME_MAX_BYTES:
        raise InvalidRequest(f"a frame of {count} bytes; the most is {FRAME_MAX_BYTES}")
    line, _, batch = stream.read(count).partition(b"\n")
    return json.loads(line), batch


def frame(said: Mapping[str, object], batch: bytes = b"") -> bytes:
    """Inverse of `read_frame`."""
    line = json.dumps(said).encode() + b"\n"
    return LENGTH.pack(len(line) + len(batch)) + line + batch


def columns_of(batch: bytes) -> Columns:
    """All columns of a batch, none left out."""
    found = RecordBatch(batch)
    return Columns(found.values(), found.keys(), found.encoded_headers(), found.timestamps_ms())


# -- where a version is found


class PathPoint:
    """A plugin in a folder: an unpacked distribution, or a project with `pyproject.toml`."""

    def __init__(self, name: str, folder: Path) -> None:
        """Raises PluginError."""
        self.name = name
        self.folder = folder.resolve()
        self.dist = None
        self.version = "?"
        if not self.folder.is_dir():
            raise PluginError(f"{folder}: there is no such folder")
        self.module = self._module()

    def _module(self) -> str:
        for found in distributions(path=[str(self.folder)]):
            for point in found.entry_points.select(group=ENTRY_POINT_GROUP, name=self.name):
                self.version = found.version
                return point.module
        project = self._project()
        self.version = str(project.get("version", "?"))
        written = project.get("entry-points", {}).get(ENTRY_POINT_GROUP, {}).get(self.name)
        if isinstance(written, str):
            return written.partition(":")[0]
        for point in entry_points(group=ENTRY_POINT_GROUP, name=self.name):
            return point.module
        raise PluginError(f"{self.folder}: no entry point {ENTRY_POINT_GROUP!r} has {self.name!r}")

    def _project(self) -> dict[str, Any]:
        file = self.folder / "pyproject.toml"
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise PluginError(f"{file}: {error}") from None
        return found if isinstance(found, dict) else {}

    def load(self) -> Any:
        """Import it from the folder. Raises PluginError: it comes from elsewhere."""
        sys.path[:0] = [str(each) for each in (self.folder, self.folder / "src") if each.is_dir()]
        module = EntryPoint(self.name, self.module, ENTRY_POINT_GROUP).load()
        if not Path(module.__file__ or "").resolve().is_relative_to(self.folder):
            raise PluginError(f"{self.folder}: there is no module {self.module}")
        return module


def _installed(name: str) -> PluginPoint:
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return point
    raise PluginError(f"plugin {name} is not installed")


class Version:
    """A plugin's interceptors, with its section of a configuration."""

    def __init__(self, name: str, path: str, config: str, folder: Path) -> None:
        """`path`: of the plugin; empty: the one that is installed. `folder`: the plugin's own
        one. Raises ConfigError, PluginError."""
        loaded = load_config(Path(config) if config else None, os.environ)
        point = PathPoint(name, Path(path)) if path else _installed(name)
        host = PluginHost(loaded.source, [point])
        plugin = host.load_one(name)
        context = PluginContext(name, plugin.settings, loaded.node.id, folder, NoOpMeter(name))
        found = host.collect_each(
            "register_interceptors", lambda _: {"context": context}, Interceptor
        )
        if not found:
            raise PluginError(f"plugin {name} has no interceptors")
        self.chain: Chain = [(name, interceptor) for _, interceptor in found]
        self.version = point.version if isinstance(point, PathPoint) else plugin.version
        module = host.module(name)
        self.file = str(Path(getattr(module, "__file__", None) or "").resolve())

    def answer(self, asked: Mapping[str, Any], batch: bytes) -> bytes:
        """What becomes of the records, as a frame."""
        given = columns_of(batch)
        # A new one, whose clock stands still: neither how long it takes nor what failed before
        # changes what becomes of a record.
        interception = Interception(self.chain, lambda: 0.0)
        begun = time.perf_counter()
        pieces = interception.run(asked["topic"], given, Principal(asked["principal"]))
        seconds = time.perf_counter() - begun
        told, stored = [], Columns([], [], [], [])
        first = 0
        for count, piece in pieces:
            told.append([count, *_refusal(piece)])
            if not isinstance(piece, LakeMQError):
                _append(stored, piece, given, first)
            first += count
        return frame({"pieces": told, "seconds": seconds}, encode(stored) if stored.values else b"")


def _refusal(piece: Piece) -> list[object]:
    if isinstance(piece, InterceptorFailed):
        return ["raised", str(piece)]
    if isinstance(piece, LakeMQError):
        return ["refused", f"{piece.code}: {piece}"]
    return ["stored", ""]


def _append(stored: Any, piece: Columns, given: Columns, first: int) -> None:
    """Columns that are left out say the same as full ones."""
    count = len(piece.values)
    assert given.timestamps_ms is not None
    stored.values.extend(piece.values)
    stored.keys.extend([None] * count if piece.keys is None else piece.keys)
    stored.headers.extend([b""] * count if piece.headers is None else piece.headers)
    times = piece.timestamps_ms
    stored.timestamps_ms.extend(
        given.timestamps_ms[first : first + count] if times is None else times
    )


def main(name: str, path: str, config: str) -> None:
    """Answer until the other end closes."""
    # What the plugin prints must not get between the frames.
    with os.fdopen(os.dup(0), "rb") as asked, os.fdopen(os.dup(1), "wb") as told:
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        logging.disable(logging.CRITICAL)
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(BrokenPipeError):
            try:
                version = Version(name, path, config, Path(folder))
            except (Exception, SystemExit) as error:  # code of a plugin
                known = isinstance(error, LakeMQError)
                text = str(error) if known else f"plugin {name}: {type(error).__name__}: {error}"
                told.write(frame({"error": text}))
                told.flush()
                return
            told.write(frame({"version": version.version, "file": version.file}))
            told.flush()
            while (got := read_frame(asked)) is not None:
                told.write(version.answer(*got))
                told.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
