"""A segment in an object store, read as a file is. Edge, blocking."""

from __future__ import annotations

from plugins.journal.manifest import RemotePlace
from plugins.journal.object_store import ObjectStore, name_of


class RemoteSegment:
    """Every method raises StoreError."""

    def __init__(self, store: ObjectStore, place: RemotePlace) -> None:
        """StoreError: it is not in this store."""
        self._store = store
        self._place = place
        self._name = name_of(store, place.uri)

    def read_at(self, position: int, size: int) -> bytes:
        size = min(size, self._place.size_bytes - position)
        if size <= 0:
            return b""
        return self._store.read(self._name, self._place.position + position, size)

    def close(self) -> None:
        """Nothing is held open."""
