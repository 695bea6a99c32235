"""Who is logged in to the dashboard. Nothing of it is stored: a restart logs everybody out."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from lakemq.plugins.admin.dashboard.options import Credentials

SESSION_MAX_MS: Final = 12 * 3600 * 1000
_SESSIONS_MAX: Final = 1000
_SESSIONS_OF_ONE_MAX: Final = 50
"""Of one user, and of all who need no login: any page can have a browser open some of these."""
_NOTES_MAX: Final = 5


@dataclass
class Session:
    """One login of one browser."""

    token: str = field(repr=False)
    csrf: str = field(repr=False)
    credentials: Credentials
    name: str
    roles: Collection[str]
    may: Collection[str]
    """Operations on the cluster: `describe`, `alter`."""
    ends_ms: int
    notes: list[tuple[str, str]] = field(default_factory=list)
    """(`ok` or `bad`, text) for the next page."""

    @property
    def is_anonymous(self) -> bool:
        """The broker asks for no login."""
        return not self.credentials.username

    def note(self, state: str, text: str) -> None:
        """Say something on the next page; the oldest of too many is forgotten."""
        self.notes = [*self.notes, (state, text)][-_NOTES_MAX:]

    def fits(self, csrf: str) -> bool:
        """Whether a form came from a page of this session; in a time that tells nothing."""
        return hmac.compare_digest(self.csrf.encode(), csrf.encode())


class Sessions:
    """By their tokens, oldest first."""

    def __init__(self, now_ms: Callable[[], int], token: Callable[[], str]) -> None:
        """`token`: makes secrets that can't be guessed."""
        self.now_ms = now_ms
        self._token = token
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, credentials: Credentials, name: str, roles: Collection[str], may: Collection[str]
    ) -> Session:
        """A new session; the oldest of too many ends, one of the same user first."""
        of_one = [each.token for each in self._sessions.values() if each.name == name]
        for token in of_one[: 1 - _SESSIONS_OF_ONE_MAX]:
            self.close(token)
        made = Session(
            self._token(), self._token(), credentials, name, roles, may,
            self.now_ms() + SESSION_MAX_MS,
        )  # fmt: skip
        self._sessions[made.token] = made
        while len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return made

    def find(self, token: str) -> Session | None:
        """None: unknown, or ended."""
        found = self._sessions.get(token)
        if found is not None and found.ends_ms <= self.now_ms():
            self.close(token)
            return None
        return found

    def close(self, token: str) -> None:
        """Log out."""
        self._sessions.pop(token, None)

    def newest(self, may: str) -> Session | None:
        """The session that began last, of those which may do that to the cluster."""
        for token in list(reversed(self._sessions)):
            found = self.find(token)
            if found is not None and may in found.may:
                return found
        return None
