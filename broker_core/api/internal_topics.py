"""Topics that the broker and its plugins keep for themselves. Pure.

The host refuses them to clients of every protocol (`Broker.authorize`); plugins reach their own as
a principal of kind `node`. An operator (`admins`) may read them, and nobody else may see them.
"""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.access import Operation

INTERNAL_PREFIXES: Final = ("__", "_lakemq_")
UNDECIDED: Final = ("_lakemq_staged", "_lakemq_delayed")
"""Topics whose records nobody reads: they belong to other topics, and may never get there."""
_OPERATORS_MAY: Final = (Operation.READ, Operation.DESCRIBE)


def is_internal(topic: str) -> bool:
    """Whether the topic is the broker's own, by its name."""
    return topic.startswith(INTERNAL_PREFIXES)


def users_topic(name: str) -> str:
    """The name, which a setting gives. Raises ValueError when it is internal."""
    if is_internal(name):
        raise ValueError(f"topic {name} would be the broker's own: names with __ or _lakemq_ first")
    return name


def refusal(topic: str, operation: Operation, *, is_operator: bool) -> str:
    """Why somebody may not do that with an internal topic, in words; empty: rules decide."""
    if not is_operator or operation not in _OPERATORS_MAY:
        return f"topic {topic} belongs to the broker; operators alone may read it"
    if topic in UNDECIDED and operation is Operation.READ:
        return f"topic {topic} holds records that are not there yet; nobody reads it"
    return ""
