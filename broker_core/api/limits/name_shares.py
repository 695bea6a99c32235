"""How many names of one kind (transactional ids, groups, queues) one user may take up. Pure.

Each has a share (`user_shares`). Whose a name is, is known to this process only: of names that were
there at the start nobody is charged, and the share is one of what they leave.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sized
from typing import Any, Protocol

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.limits.user_shares import Owner, UserShares, owner_of
from lakemq.broker_core.api.types import Principal


class Names(Container[Any], Sized, Protocol):
    """The names that there are: a dict or a set of the caller's own."""


class NameShares:
    """Ask before a name is made. A name that is gone is noticed when its owner wants another."""

    def __init__(self, what: str, names: Names, *, names_max: int, user_share_max: float) -> None:
        """`what`: they are, in the plural."""
        self._what = what
        self._names = names
        self._names_max = names_max
        self._shares = UserShares(user_share_max)
        self._taken: dict[Owner, set[Hashable]] = {}

    def take(self, name: Hashable, principal: Principal) -> None:
        """The name is about to be made, or is there. InvalidRequest: there are too many, of all
        users or of this one."""
        self._shares.note(principal)
        if name in self._names:
            return
        if len(self._names) >= self._names_max:
            raise InvalidRequest(f"there are {len(self._names)} {self._what}; no more are taken")
        owner = owner_of(principal)
        mine = self._taken.setdefault(owner, set())
        if len(mine) >= self._most(principal):
            self._look_again()
            mine = self._taken.setdefault(owner, set())
            if len(mine) >= self._most(principal):
                raise InvalidRequest(
                    f"{principal.name} has {len(mine)} {self._what}, the share of one user; "
                    "no more are taken"
                )
        mine.add(name)

    def _most(self, principal: Principal) -> int:
        owner = owner_of(principal)
        if principal.kind == "node" or self._shares.alone(owner):
            return self._names_max
        charged = sum(map(len, self._taken.values()))
        nobodys = max(0, len(self._names) - charged)
        return self._shares.most(self._names_max - nobodys, owner)

    def _look_again(self) -> None:
        """Forget names that are gone."""
        for owner, names in list(self._taken.items()):
            names.intersection_update([name for name in names if name in self._names])
            if not names:
                del self._taken[owner]
