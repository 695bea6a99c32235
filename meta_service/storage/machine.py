"""The state machine that Raft drives: the pure catalog over a store, one batch per command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from meta_service.catalog.apply import Applied, apply, keep_group
from meta_service.catalog.draft import View
from meta_service.catalog.results import Result
from meta_service.catalog.tables import GROUP_KEY, State
from meta_service.raft.state import SnapshotSink


class WritableView(View, Protocol):
    """A store as the state machine needs it."""

    def state(self) -> State: ...
    def write(self, writes: Mapping[bytes, bytes | None]) -> None:
        """All or nothing, in the order of the calls."""

    def install(self, sink: SnapshotSink) -> None:
        """Hold what a sealed snapshot holds, durably, and nothing else."""


class StateMachine:
    """Applies committed commands. Used by the Raft thread only."""

    def __init__(
        self,
        store: WritableView,
        on_applied: Callable[[Applied], None],
        on_installed: Callable[[], None],
    ) -> None:
        self._store = store
        self._on_applied = on_applied
        self._on_installed = on_installed
        self.state = store.state()

    @property
    def applied_index(self) -> int:
        return self.state.applied_index

    @property
    def applied_term(self) -> int:
        return self.state.applied_term

    def apply(self, index: int, term: int, command: bytes) -> Result:
        """Raises StorageFailed or MemberTooOld: the member must stop."""
        applied = apply(self._store, self.state, index, term, command)
        self._store.write(applied.writes)
        self.state = applied.state
        self._on_applied(applied)
        return applied.result

    def set_group(self, index: int, term: int, group: bytes) -> None:
        """Raises StorageFailed: the member must stop."""
        applied = keep_group(self.state, index, term, group)
        self._store.write(applied.writes)
        self.state = applied.state
        self._on_applied(applied)

    def group(self) -> bytes | None:
        return self._store.get(GROUP_KEY)

    def install(self, sink: SnapshotSink) -> None:
        """Raises StorageFailed: the member must stop."""
        self._store.install(sink)
        self.state = self._store.state()
        self._on_installed()
