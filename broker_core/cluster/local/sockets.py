"""Where the processes of a node keep what they store, and listen for each other."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lakemq.meta_service.api.types import node_of, process_id

FOLDER: Final = "processes"
"""Below the data folder: a folder for each process but the first."""
_NAME: Final = "peer.sock"


def folder_of(whole: Path, number: int) -> Path:
    """Where a process keeps what it stores. `whole`: the data folder of the node."""
    return whole if number == 1 else whole / FOLDER / str(number)


class ProcessSockets:
    """Of one process of a node."""

    def __init__(self, node_id: str, folder: Path, number: int) -> None:
        """`node_id`, `folder`: of this process."""
        self.machine: Final = node_of(node_id)
        """The node that the processes belong to."""
        self.own: Final = folder / _NAME
        """Where this process listens."""
        self._whole = folder if number == 1 else folder.parent.parent

    def of(self, node_id: str) -> Path | None:
        """Where that process listens; None: it is none of this node."""
        if node_of(node_id) != self.machine:
            return None
        number = int(node_id.removeprefix(process_id(self.machine, 1)).removeprefix(".p") or "1")
        return folder_of(self._whole, number) / _NAME
