"""Topics that the broker keeps for itself. Pure."""

from __future__ import annotations

from typing import Final

from broker_core.api.errors import NotAuthorized

INTERNAL_PREFIX: Final = "_lakemq_"


def is_internal(topic: str) -> bool:
    return topic.startswith(INTERNAL_PREFIX)


def refuse_internal(topic: str) -> None:
    """Raises NotAuthorized."""
    if is_internal(topic):
        raise NotAuthorized(f"topic {topic} belongs to the broker; clients only read it")
