"""Three nodes on this machine, one of them killed while devices publish (`make cluster`)."""

from __future__ import annotations

import argparse
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

FOLDER: Final = Path("lakemq-cluster")
NODES_MIN: Final = 3


class DemoFailed(Exception):
    """Something that the demo needs is missing or went wrong; one clear message."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lakemq cluster demo", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to work: absent or empty")
    parser.add_argument("--rows", type=int, help="replay only the first rows of the file")
    parser.add_argument("--nodes", type=int, default=NODES_MIN, help="how many nodes; 3 or more")
    options = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    began = time.monotonic()
    try:
        whole = tell_story(console, options.folder, options.nodes, options.rows)
    except DemoFailed as error:
        console.print(f"[bold red]demo:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("demo: stopped")
        return 130
    console.print(f"[dim]{time.monotonic() - began:.0f} s in all[/]")
    return 0 if whole else 1


def tell_story(console: Console, chosen: Path | None, nodes: int, rows: int | None) -> bool:
    """Imports what the story needs only now, so that a missing part is told in one sentence."""
    if nodes < NODES_MIN:
        raise DemoFailed(f"--nodes {nodes}: each record goes to {NODES_MIN} nodes")
    try:
        from examples.cluster.story import Story, StoryFailed
    except ImportError as error:
        raise DemoFailed(
            f"Python package {error.name} is missing: pip install -e '.[demo]' installs it"
        ) from None
    try:
        return Story(console, prepare(chosen), nodes, rows).tell()
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
