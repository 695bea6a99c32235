"""The state machine that Raft drives: the pure catalog over a store.

Commands that were committed together are stored in one batch. Each one sees what those before it
did; others see them when the batch is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from lakemq.meta_service.catalog.apply import Applied, apply, keep_group
from lakemq.meta_service.catalog.draft import View
from lakemq.meta_service.catalog.results import Result
from lakemq.meta_service.catalog.tables import GROUP_KEY, STATE_KEY, State, encode_state
from lakemq.meta_service.raft.state import SnapshotSink

_BATCH_MAX_BYTES: Final = 4 * 1024 * 1024
"""Commands that are kept in memory before they are stored (bytes)."""


class WritableView(View, Protocol):
    """A store as the state machine needs it."""

    def state(self) -> State:
        """The state row, as it was stored last."""

    def write(self, writes: Mapping[bytes, bytes | None]) -> None:
        """All or nothing, in the order of the calls."""

    def install(self, sink: SnapshotSink) -> None:
        """Hold what a sealed snapshot holds, durably, and nothing else."""


class _Ahead:
    """A store and what shall be written into it next. Implements `View`."""

    def __init__(self, store: WritableView) -> None:
        self._store = store
        self._writes: dict[bytes, bytes | None] = {}
        self._state: State
        self._is_behind = False

    def get(self, key: bytes) -> bytes | None:
        # None among the writes is a deletion, so the store must not be asked.
        return self._writes[key] if key in self._writes else self._store.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # A scan merges nothing: what was kept back goes to the store first.
        self.write()
        return self._store.scan(prefix)

    def take(self, applied: Applied) -> None:
        self._writes.update(applied.writes)
        self._state = applied.state
        self._is_behind = True

    def write(self) -> None:
        """The state row is among the writes: the store knows how far it has come."""
        if self._is_behind:
            self._is_behind = False
            self._writes[STATE_KEY] = encode_state(self._state)
            self._store.write(self._writes)
            self._writes = {}


class StateMachine:
    """Applies committed commands. Used by the Raft thread only."""

    def __init__(
        self,
        store: WritableView,
        on_applied: Callable[[Sequence[Applied]], None],
        on_installed: Callable[[], None],
    ) -> None:
        """`on_applied`: called with what was stored at once, in order."""
        self._store = store
        self._ahead = _Ahead(store)
        self._applied: list[Applied] = []
        self._applied_bytes = 0
        self._on_applied = on_applied
        self._on_installed = on_installed
        self.state = store.state()

    @property
    def applied_index(self) -> int:
        """Log index of the last command applied, stored or not."""
        return self.state.applied_index

    @property
    def applied_term(self) -> int:
        """Term of that command."""
        return self.state.applied_term

    def apply(self, index: int, term: int, command: bytes) -> Result:
        """Raises StorageFailed or MemberTooOld: the member must stop."""
        applied = apply(self._ahead, self.state, index, term, command)
        self._take(applied)
        self._applied_bytes += len(command)
        # Stored early, for memory: answers wait for the `flush` of the Raft node all the same.
        if self._applied_bytes > _BATCH_MAX_BYTES:
            self.flush()
        return applied.result

    def _take(self, applied: Applied) -> None:
        self._ahead.take(applied)
        self._applied.append(applied)
        self.state = applied.state

    def flush(self) -> None:
        """Raises StorageFailed: the member must stop."""
        self._ahead.write()
        shown, self._applied, self._applied_bytes = self._applied, [], 0
        if shown:
            self._on_applied(shown)

    def set_group(self, index: int, term: int, group: bytes) -> None:
        """Keep a committed configuration with the catalog, so that snapshots hold it."""
        self._take(keep_group(self.state, index, term, group))

    def group(self) -> bytes | None:
        """The configuration kept last; None: the group is the one that was set up."""
        return self._ahead.get(GROUP_KEY)

    def install(self, sink: SnapshotSink) -> None:
        """Raises StorageFailed: the member must stop."""
        self._store.install(sink)
        self.state = self._store.state()
        self._on_installed()
