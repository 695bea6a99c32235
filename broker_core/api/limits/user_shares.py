"""How much of a node-wide limit one user may use.

Without this, one account could exhaust what all others need; so each user gets at most a share.
Anonymous clients count as one user, which may use everything as long as no named user has connected
to this node.
"""

from __future__ import annotations

from lakemq.broker_core.api.types import Principal

Owner = tuple[str, str]
"""Kind and name of a principal: who owns something, whatever its rights are now."""


def owner_of(principal: Principal) -> Owner:
    """The owner of what the principal makes."""
    return principal.kind, principal.name


class UserShares:
    """The share of one user, and whether there are others."""

    def __init__(self, user_share_max: float = 1.0) -> None:
        self._user_share_max = user_share_max
        self._users_came = False

    def note(self, principal: Principal) -> None:
        """A client was authenticated as this principal."""
        self._users_came |= principal.kind == "user"

    def alone(self, owner: Owner) -> bool:
        """Whether the owner may use everything: no named user has connected."""
        return owner[0] == "anonymous" and not self._users_came

    def most(self, limit: int, owner: Owner) -> int:
        """How much of `limit` the owner may use."""
        if self.alone(owner):
            return limit
        # One at least: a small limit must not shut every user out.
        return min(limit, max(1, int(limit * self._user_share_max)))
