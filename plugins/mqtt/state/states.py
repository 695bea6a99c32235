"""States of a connection."""

from __future__ import annotations

import enum
from typing import Final

NEVER_MS: Final = 1 << 62
"""A time that does not come."""


class State(enum.Enum):
    """NEW --CONNECT--> AUTHENTICATING --principal--> CONNECTED --> CLOSED

    With an authentication method: AUTHENTICATING --challenge--> CHALLENGED --AUTH--> back.
    """

    NEW = 1
    AUTHENTICATING = 2
    CONNECTED = 3
    CLOSED = 4
    CHALLENGED = 5

    __hash__ = object.__hash__
    """By identity: `Enum.__hash__` is Python, and handlers are looked up by state per packet."""
