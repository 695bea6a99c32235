"""One command's work in progress: reads see its own writes, nothing is stored yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from lakemq.meta_service.catalog.tables import KEYS, Row, State, decode_row, encode_row


class View(Protocol):
    """The stored state, read only."""

    def get(self, key: bytes) -> bytes | None:
        """The stored value; None: absent."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of all keys with that prefix, in order."""


class Draft:
    """Writes, in order of keys when they are read back, and events of one command."""

    def __init__(self, view: View, state: State) -> None:
        self._view = view
        self.state = state
        """As it was before the command."""
        self.revision = state.revision + 1
        """That of the command's mutations, if it has any."""
        self.writes: dict[bytes, bytes | None] = {}
        self._read: dict[bytes, bytes | None] = {}
        self._rows: dict[bytes, Row | None] = {}
        """Rows that were looked at, as they are now."""
        self.events: list[tuple[bytes, bytes | None]] = []
        self.rows: list[tuple[bytes, Row | None]] = []
        """Rows as they are after each event."""

    def get(self, key: bytes) -> bytes | None:
        """The value as the command sees it, its own writes included; None: absent."""
        if key in self.writes:
            return self.writes[key]
        if key not in self._read:
            self._read[key] = self._view.get(key)
        return self._read[key]

    def set(self, key: bytes, value: bytes | None) -> None:
        """Write a value; None deletes the key."""
        self.writes[key] = value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Stored and drafted keys with that prefix, merged in order."""
        merged = dict(self._view.scan(prefix))
        merged.update(
            (key, value or b"") for key, value in self.writes.items() if key.startswith(prefix)
        )
        for key in sorted(merged):
            if self.writes.get(key, b"") is not None:
                yield key, merged[key]

    # ------------------------------------------------------------ the KV space

    def row(self, key: bytes) -> Row | None:
        """A row of the KV space as the command sees it; None: absent."""
        if key in self._rows:
            return self._rows[key]
        data = self.get(KEYS + key)
        row = self._rows[key] = decode_row(data) if data is not None else None
        return row

    def put_row(self, key: bytes, value: bytes) -> None:
        """Put a value into the KV space, with the revisions and the event that belong to it."""
        before = self.row(key)
        row = Row(
            value,
            # All rows of one command get the same revision: it changes them at once.
            before.create_revision if before else self.revision,
            self.revision,
            before.version + 1 if before else 1,
        )
        self.set(KEYS + key, encode_row(row))
        self._rows[key] = row
        self.events.append((key, value))
        self.rows.append((key, row))

    def delete_row(self, key: bytes) -> bool:
        """Whether the key was there."""
        if self.row(key) is None:
            return False
        self.set(KEYS + key, None)
        self._rows[key] = None
        self.events.append((key, None))
        self.rows.append((key, None))
        return True
