"""Shares of one user in the memory that all clients of a node have in common.

The rule is in `lakemq.broker_core.api.limits.user_shares`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from lakemq.broker_core.api.limits.user_shares import Owner


class Holdings:
    """Who has how much of one thing."""

    def __init__(self) -> None:
        self._amounts: Counter[Owner] = Counter()

    def of(self, owner: Owner) -> int:
        """How much an owner has."""
        return self._amounts.get(owner, 0)

    def add(self, owner: Owner | None, amount: int = 1) -> None:
        """`amount` below 0: gives back. None: no user's."""
        if owner is None:
            return
        self._amounts[owner] += amount
        # Owners come and go: an entry that is zero would stay forever.
        if not self._amounts[owner]:
            del self._amounts[owner]


class Kinds:
    """Which kinds of something each owner has, and how often."""

    def __init__(self) -> None:
        self._kinds: dict[Owner, Counter[Hashable]] = {}

    def of(self, owner: Owner) -> int:
        """How many different kinds an owner has."""
        return len(self._kinds.get(owner, ()))

    def add(self, owner: Owner, kind: Hashable) -> None:
        """Count one more of a kind."""
        self._kinds.setdefault(owner, Counter())[kind] += 1

    def remove(self, owner: Owner, kind: Hashable) -> None:
        """Count one less of a kind. Raises KeyError for an owner that has none."""
        kinds = self._kinds[owner]
        kinds[kind] -= 1
        if not kinds[kind]:
            del kinds[kind]
        if not kinds:
            del self._kinds[owner]
