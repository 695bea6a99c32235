"""Topics that the broker and its plugins keep for themselves: their names, and who may touch them.

A topic is internal by its name alone: it begins with `__`, or with `_lakemq_` as the first ones do
(`OLDER_NAMES`, which are kept so that every build finds its data). The host refuses them to clients
of every protocol (`Broker.authorize`); plugins reach their own as a principal of kind `node`. An
operator (`admins`) may read them; they are hidden from all others.
"""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.access import Operation

PREFIX: Final = "__"
"""What names of internal topics begin with."""
OLDER_PREFIX: Final = "_lakemq_"
STAGED: Final = "_lakemq_staged"
SCHEDULES: Final = "_lakemq_delayed"
OLDER_NAMES: Final = frozenset(
    {"_lakemq_offsets", "_lakemq_queues", "_lakemq_transactions", STAGED, SCHEDULES}
)
"""All names with the older prefix that there are: no other is given."""
BANS: Final = "__mqtt_bans"
BRIDGES: Final = "__bridge"
DELAYED: Final = "__mqtt_delayed"
RETAINED: Final = "__mqtt_retained"
SHARED: Final = frozenset(
    {
        "__mqtt_homes", "_lakemq_offsets", "_lakemq_queues",
        BANS, BRIDGES, DELAYED, RETAINED, STAGED, SCHEDULES,
    }
)  # fmt: skip
"""Internal topics that exist once in a cluster: their partitions have replicas, and one leader. Of
all others each node has its own copy."""
WRITTEN_BY_ALL: Final = frozenset({BANS, DELAYED, RETAINED})
"""Those of them that every node writes, through the leader; of the others the leader alone."""
UNDECIDED: Final = (STAGED, SCHEDULES)
"""Topics whose records no client may read: they belong to other topics, and may never get there."""
_OPERATORS_MAY: Final = (Operation.READ, Operation.DESCRIBE)


def is_internal(topic: str) -> bool:
    """Whether the topic is the broker's own, by its name."""
    return topic.startswith((PREFIX, OLDER_PREFIX))


def is_node_own(topic: str) -> bool:
    """Whether it is an internal topic of which each node has its own copy."""
    return is_internal(topic) and topic not in SHARED


def takes_from_nodes(topic: str) -> bool:
    """Whether its leader takes records from other nodes."""
    return not is_internal(topic) or topic in WRITTEN_BY_ALL


def check_state_name(name: str) -> str:
    """The name, which a part of the broker gives its own topic. Raises ValueError."""
    if not name.startswith(PREFIX) and name not in OLDER_NAMES:
        raise ValueError(f"internal topic {name!r} must be named {PREFIX}...")
    return name


def users_topic(name: str) -> str:
    """The name of a topic that a setting gives. Raises ValueError when it is internal."""
    if is_internal(name):
        raise ValueError(
            f"topic {name} would be internal: choose a name without {PREFIX} or {OLDER_PREFIX} "
            "at its beginning"
        )
    return name


def refusal(topic: str, operation: Operation, *, is_operator: bool) -> str:
    """Why a principal may not do that with an internal topic; empty: rules decide."""
    if not is_operator or operation not in _OPERATORS_MAY:
        return f"topic {topic} is internal; only operators may read it"
    if topic in UNDECIDED and operation is Operation.READ:
        return f"topic {topic} holds records that are not committed yet; it cannot be read"
    return ""
