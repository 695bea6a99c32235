"""Topics that the broker keeps for itself. Pure."""

from __future__ import annotations

from typing import Final

from broker_core.api.errors import NotAuthorized

INTERNAL_PREFIX: Final = "_lakemq_"


HIDDEN: Final = ("_lakemq_staged", "_lakemq_delayed")
"""Topics whose records nobody reads: they belong to other topics, and may never get there."""


def is_internal(topic: str) -> bool:
    return topic.startswith(INTERNAL_PREFIX)


def refuse_internal(topic: str) -> None:
    """Raises NotAuthorized."""
    if is_internal(topic):
        raise NotAuthorized(f"topic {topic} belongs to the broker; clients only read it")


def refuse_hidden(topic: str) -> None:
    """Raises NotAuthorized."""
    if topic in HIDDEN:
        raise NotAuthorized(f"topic {topic} holds records that are not there yet; nobody reads it")
