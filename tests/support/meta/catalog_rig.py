"""A catalog in memory, command by command."""

from __future__ import annotations

from lakemq.meta_service.api.types import TopicDescription
from lakemq.meta_service.catalog.apply import Applied, apply
from lakemq.meta_service.catalog.command_codec import Command, Header, encode_command
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.tables import KEYS, STATE_KEY, State, decode_row, encode_state
from lakemq.meta_service.catalog.topics import find_topic
from tests.support.meta.disk import MemoryStore


def stored(applied: Applied) -> dict[bytes, bytes | None]:
    """What goes to the store when a command is stored alone."""
    return {**applied.writes, STATE_KEY: encode_state(applied.state)}


class Catalog:
    """A catalog in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.state = State()

    def apply_bytes(self, data: bytes) -> Applied:
        index = self.state.applied_index + 1
        applied = apply(self.store, self.state, index, 1, data)
        self.store.write(stored(applied))
        self.state = applied.state
        return applied

    def do(self, command: Command, header: Header = Header()) -> Applied:  # noqa: B008 - immutable
        return self.apply_bytes(encode_command(command, header))

    def value(self, key: bytes) -> bytes | None:
        row = self.store.get(KEYS + key)
        return decode_row(row).value if row else None

    def draft(self) -> Draft:
        """The catalog as the next command would see it."""
        return Draft(self.store, self.state)

    def topic(self, name: str) -> TopicDescription:
        return find_topic(self.draft(), name)


class Stored:
    """A catalog's store as members have it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def get(self, key: bytes) -> bytes | None:
        return self._catalog.store.get(key)

    def first(self, prefix: bytes, count: int) -> list[tuple[bytes, bytes]]:
        return list(self._catalog.store.scan(prefix))[:count]
