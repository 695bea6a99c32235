"""What a client tells of its connections, to the logger `lakemq.sdk`: reconnects, other leaders,
what is sent again. At INFO, since it passes by itself, and at a bounded rate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

_log: Final = logging.getLogger("lakemq.sdk")
_INTERVAL_S: Final = 10.0
_KEYS_MAX: Final = 1000


class Notices:
    """Of one client. Each kind of notice about each thing is told once in a while; how many were
    left out meanwhile is told with the next."""

    def __init__(
        self, interval_s: float = _INTERVAL_S, clock: Callable[[], float] = monotonic
    ) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._told: dict[tuple[str, ...], tuple[float, int]] = {}
        """Kind and thing -> when it was told last, and how often it was left out since."""

    def tell(self, *key: str, text: str, level: int = logging.INFO) -> None:
        """Log `text`, unless one of that key was logged a short while ago."""
        if not _log.isEnabledFor(level):
            return
        now_s = self._clock()
        told = self._told.get(key)
        if told is not None and now_s < told[0] + self._interval_s:
            self._told[key] = told[0], told[1] + 1
            return
        if len(self._told) >= _KEYS_MAX:
            self._told.clear()
        self._told[key] = now_s, 0
        more = f" ({told[1]} more like this since the last)" if told is not None and told[1] else ""
        _log.log(level, "%s%s", text, more)
