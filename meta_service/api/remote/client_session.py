"""Numbers a client's commands, so that a retry is applied once.

A number is used once; the server keeps an answer until the client says it has it. `acknowledged`
says so: every sequence up to it is settled.
"""

from __future__ import annotations


class ClientSession:
    """Command deduplication: the sequences of one client id."""

    def __init__(self, client_id: bytes) -> None:
        self.client_id = client_id
        self.acknowledged = 0
        self._last = 0
        self._settled: set[int] = set()

    def next(self) -> int:
        """The sequence of the next command."""
        self._last += 1
        return self._last

    def settle(self, sequence: int) -> None:
        """Its answer came, or its caller has given up."""
        self._settled.add(sequence)
        while self.acknowledged + 1 in self._settled:
            self.acknowledged += 1
            self._settled.remove(self.acknowledged)
