"""How much of what all clients of a node have together one user may have. Pure.

A bound that is the node's alone lets one account use up what all others need. So each user has at
most a share of it. Anonymous clients count as one user, which has everything as long as no user
with a name came to this node: then nobody else is kept from anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from broker_core.api.types import Principal

Owner = tuple[str, str]
"""Kind and name of a principal: whose something is, whatever its rights are now."""


def owner_of(principal: Principal) -> Owner:
    return principal.kind, principal.name


class Shares:
    """What one user may have of a bound, and whether there is anybody else."""

    def __init__(self, user_share_max: float = 1.0) -> None:
        self._user_share_max = user_share_max
        self._users_came = False

    def note(self, principal: Principal) -> None:
        """Somebody is known."""
        self._users_came |= principal.kind == "user"

    def most(self, limit: int, owner: Owner) -> int:
        """How much of `limit` the owner may have."""
        if owner[0] == "anonymous" and not self._users_came:
            return limit
        return min(limit, max(1, int(limit * self._user_share_max)))


class Holdings:
    """Who has how much of one thing."""

    def __init__(self) -> None:
        self._amounts: Counter[Owner] = Counter()

    def of(self, owner: Owner) -> int:
        return self._amounts.get(owner, 0)

    def add(self, owner: Owner | None, amount: int = 1) -> None:
        """`amount` below 0: gives back. None: nobody's."""
        if owner is None:
            return
        self._amounts[owner] += amount
        if not self._amounts[owner]:
            del self._amounts[owner]


class Kinds:
    """Which kinds of something each owner has, and how often."""

    def __init__(self) -> None:
        self._kinds: dict[Owner, Counter[Hashable]] = {}

    def of(self, owner: Owner) -> int:
        return len(self._kinds.get(owner, ()))

    def add(self, owner: Owner, kind: Hashable) -> None:
        self._kinds.setdefault(owner, Counter())[kind] += 1

    def remove(self, owner: Owner, kind: Hashable) -> None:
        kinds = self._kinds[owner]
        kinds[kind] -= 1
        if not kinds[kind]:
            del kinds[kind]
        if not kinds:
            del self._kinds[owner]
