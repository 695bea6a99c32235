"""How many names of one kind (transactional ids, groups, queues) one user may occupy.

Each user has a share (`user_shares`). Owners are known to this process only: names that existed at
its start are charged to no user, and the shares are of what those leave.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sized
from typing import Any, Protocol

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.limits.user_shares import Owner, UserShares, owner_of
from lakemq.broker_core.api.types import Principal


class Names(Container[Any], Sized, Protocol):
    """The names that exist: a dict or set that the caller maintains."""


class NameShares:
    """Asked before a name is created. Deleted names are noticed when their owner needs room."""

    def __init__(self, what: str, names: Names, *, names_max: int, user_share_max: float) -> None:
        """`what`: the kind of names, in the plural, for messages."""
        self._what = what
        self._names = names
        self._names_max = names_max
        self._shares = UserShares(user_share_max)
        self._taken: dict[Owner, set[Hashable]] = {}

    def take(self, name: Hashable, principal: Principal) -> None:
        """Charge a name that is about to be created, if it does not exist. Raises InvalidRequest
        when there are too many, of all users or of this one."""
        self._shares.note(principal)
        if name in self._names:
            return
        if len(self._names) >= self._names_max:
            raise InvalidRequest(f"there are {len(self._names)} {self._what}, the maximum")
        owner = owner_of(principal)
        mine = self._taken.setdefault(owner, set())
        if len(mine) >= self._most(principal):
            self._uncharge_deleted()
            mine = self._taken.setdefault(owner, set())
            if len(mine) >= self._most(principal):
                raise InvalidRequest(
                    f"{principal.name} has {len(mine)} {self._what}, the maximum for one user"
                )
        mine.add(name)

    def _most(self, principal: Principal) -> int:
        owner = owner_of(principal)
        if principal.kind == "node" or self._shares.alone(owner):
            return self._names_max
        charged = sum(map(len, self._taken.values()))
        nobodys = max(0, len(self._names) - charged)
        return self._shares.most(self._names_max - nobodys, owner)

    def _uncharge_deleted(self) -> None:
        """Uncharge names that were deleted."""
        for owner, names in list(self._taken.items()):
            names.intersection_update([name for name in names if name in self._names])
            if not names:
                del self._taken[owner]
