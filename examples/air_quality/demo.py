"""The whole road on real data: MQTT devices -> node -> Delta table -> answers (`make demo`)."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if __package__ in (None, ""):  # run by path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.markup import escape

FOLDER: Final = Path("artifacts/air-quality")
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a few seconds of work: without the compiler and the collector that pay off over hours."""


class DemoFailed(Exception):
    """Something that the demo needs is missing or went wrong; one clear message."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to work: absent or empty")
    parser.add_argument("--rows", type=int, help="replay only the first rows of the file")
    options = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    began = time.monotonic()
    try:
        agrees = tell_story(console, options.folder, options.rows)
    except DemoFailed as error:
        console.print(f"[bold red]demo:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("demo: stopped")
        return 130
    console.print(f"[dim]{time.monotonic() - began:.0f} s in all[/]")
    return 0 if agrees else 1


def tell_story(console: Console, chosen: Path | None, rows: int | None) -> bool:
    """Imports what the story needs only now, so that a missing part is told in one sentence."""
    try:
        # gRPC reads it when it is imported, and would complain of the fork that starts Spark.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        from examples.air_quality.story import Story, StoryFailed
        from lakemq.spark_plugin.errors import MissingDependency
        from lakemq.spark_plugin.session import check_installed
    except ImportError as error:
        raise DemoFailed(
            f"Python package {error.name} is missing: pip install -e '.[spark,demo]' installs it"
        ) from None
    os.environ.setdefault("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
    try:
        check_installed()
    except MissingDependency as error:
        raise DemoFailed(str(error)) from None
    try:
        return Story(console, prepare(chosen), rows).tell()
    except StoryFailed as error:
        raise DemoFailed(str(error)) from None


def prepare(chosen: Path | None) -> Path:
    """An empty folder. The demo's own is emptied; anybody else's must be empty."""
    folder = (chosen or FOLDER).absolute()
    if chosen is None:
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists() and any(folder.iterdir()):
        raise DemoFailed(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
