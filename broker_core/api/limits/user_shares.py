"""How much of what all clients of a node have together one user may have. Pure.

A bound that is the node's alone lets one account use up what all others need. So each user has at
most a share of it. Anonymous clients count as one user, which has everything as long as no user
with a name came to this node: then nobody else is kept from anything.
"""

from __future__ import annotations

from lakemq.broker_core.api.types import Principal

Owner = tuple[str, str]
"""Kind and name of a principal: whose something is, whatever its rights are now."""


def owner_of(principal: Principal) -> Owner:
    return principal.kind, principal.name


class UserShares:
    """What one user may have of a bound, and whether there is anybody else."""

    def __init__(self, user_share_max: float = 1.0) -> None:
        self._user_share_max = user_share_max
        self._users_came = False

    def note(self, principal: Principal) -> None:
        """Somebody is known."""
        self._users_came |= principal.kind == "user"

    def alone(self, owner: Owner) -> bool:
        """Whether the owner has everything: nobody else came."""
        return owner[0] == "anonymous" and not self._users_came

    def most(self, limit: int, owner: Owner) -> int:
        """How much of `limit` the owner may have."""
        if self.alone(owner):
            return limit
        return min(limit, max(1, int(limit * self._user_share_max)))
