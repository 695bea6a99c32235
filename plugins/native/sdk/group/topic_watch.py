"""Warns of topics that a consumer waits for because they do not exist: perhaps a typing error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, UnknownTopic

log = logging.getLogger("lakemq.sdk")
AGAIN_S: Final = 60.0


async def watch_for_topics(
    topics: Sequence[str],
    group: str,
    describe: Callable[[str], Awaitable[object]],
    again_s: float = AGAIN_S,
) -> None:
    """Log a warning that names those that do not exist, now and every `again_s`; returns when all
    do. `describe` raises UnknownTopic. What else it raises is left to who reads the topic."""
    missing = list(topics)
    while missing:
        gone = []
        for name in missing:
            try:
                await describe(name)
            except UnknownTopic:
                gone.append(name)
            except LakeMQError:
                continue
        missing = gone
        if missing:
            names = ", ".join(repr(each) for each in missing)
            log.warning("group %s waits for topics that do not exist (yet): %s", group, names)
            await asyncio.sleep(again_s)
