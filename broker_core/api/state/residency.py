"""Whether the state that lies in a partition is held, and may be answered from. No IO.

What a partition of a shared internal topic keeps (committed offsets, say) is in memory on the node
that leads it: its *resident*. A node that comes to lead reads the partition back first.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

NOT_HELD: Final = -1
"""In place of a leader epoch: nothing is held, or being read."""


class Todo(Enum):
    """What `Residency.look` asks for."""

    NOTHING = auto()
    DROP = auto()
    """Forget what is held: another node has led since it was read."""
    READ = auto()
    """Read the partition back, then say so with `was_read`. What is held is forgotten first."""


class Residency:
    """Of one partition. It is told again and again what holds now."""

    def __init__(self) -> None:
        self.turn = 0
        """Names the reading that is under way; the outcome of an earlier one does not count."""
        self._epoch = NOT_HELD
        """Leader epoch that the state, or the reading, is of."""
        self._held = False
        self._ready = False

    @property
    def held(self) -> bool:
        """Whether there is something to forget."""
        return self._held

    @property
    def reading(self) -> bool:
        """Whether the partition is being read back."""
        return self._epoch != NOT_HELD and not self._held

    @property
    def serves(self) -> bool:
        """Whether requests may be answered: what is held is all that was committed."""
        return self._held and self._ready

    def look(self, *, leads: bool, epoch: int, ready: bool) -> Todo:
        """`leads`: whether the catalog, as far as known, names this node, with that leader epoch.
        `ready`: whether it has begun to lead, and its lease holds."""
        self._ready = leads and ready
        if leads and self._epoch != NOT_HELD and epoch in (self._epoch, self._epoch + 1):
            # Each epoch has one leader: no other node has led between two epochs in a row that are
            # both this node's, so nothing was written that is not known here. A node alone has a
            # new epoch with each registration.
            self._epoch = epoch
            return Todo.NOTHING
        had, self._held, self._epoch = self._held, False, NOT_HELD
        self.turn += 1  # whatever is being read is of a leadership that has ended
        if self._ready:
            self._epoch = epoch
            return Todo.READ
        return Todo.DROP if had else Todo.NOTHING

    def was_read(self, turn: int) -> bool:
        """The reading named `turn` is done; whether what it gave is to be held from now on."""
        if turn != self.turn or not self.reading:
            return False
        self._held = True
        return True

    def failed(self, turn: int) -> None:
        """The reading named `turn` has failed: the next `look` asks for another."""
        if turn == self.turn and self.reading:
            self._epoch = NOT_HELD
