"""A run as JSON: what was measured, on what machine, each sample of each round. Pure but for the
reading of the machine."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.declare import Curve, Result

FORMAT: Final = 1


class NotHistory(Exception):
    """A file is not a run that this harness wrote; the text names it."""


@dataclass
class Run:
    began: str
    """UTC, ISO 8601, whole seconds."""
    machine: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)

    def dumps(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    def merged(self, later: Run) -> Run:
        """This run with what a later one measured in place of the same."""
        return Run(
            later.began, later.machine, {**self.versions, **later.versions},
            {**self.results, **later.results}, {**self.curves, **later.curves},
        )  # fmt: skip


def loads(text: str, name: str) -> Run:
    """Raises NotHistory."""
    try:
        told = json.loads(text)
        if told.pop("format") != FORMAT:
            raise NotHistory(f"{name}: not of format {FORMAT}")
        results = {key: Result(**each) for key, each in told.pop("results").items()}
        curves = {key: curve_of(each) for key, each in told.pop("curves").items()}
        return Run(**told, results=results, curves=curves)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotHistory(f"{name} is not a run of the benchmarks: {error}") from None


def curve_of(told: dict[str, Any]) -> Curve:
    points = {
        side: [(float(size), dict(sample)) for size, sample in found]
        for side, found in told.pop("points").items()
    }
    return Curve(**told, points=points)


def load(path: Path) -> Run:
    """Raises NotHistory, also where the file can't be read."""
    try:
        return loads(path.read_text(), str(path))
    except OSError as error:
        raise NotHistory(f"{path}: {error.strerror}") from None


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
