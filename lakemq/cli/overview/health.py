"""What of a cluster is not as it should be, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lakemq.cli.doctor import Check, State
from lakemq.cli.overview.reading import Reading

DISK_WARNING: Final = 0.85
DISK_FAILING: Final = 0.95
SILENT_S: Final = 5.0
_LACKS: Final = (
    ("leaderless", State.FAILING, "start their nodes; else 'lakemq partition elect --unclean'"),
    ("under-min-in-sync", State.FAILING, "start the nodes of their replicas"),
    ("under-replicated", State.WARNING, "'lakemq partition list --under-replicated' names them"),
)


def alarms(found: Reading) -> list[Check]:
    """The failing ones first; empty: all is well."""
    checks = [*_of_nodes(found), *_of_partitions(found), *_of_the_rest(found)]
    return sorted(checks, key=lambda check: check.state is not State.FAILING)


def health(checks: list[Check]) -> State:
    """The worst of them."""
    states = {check.state for check in checks}
    return next((each for each in (State.FAILING, State.WARNING) if each in states), State.OK)


def _of_nodes(found: Reading) -> Iterator[Check]:
    if found.cluster["meta"]["leader"] is None:
        advice = "start more members: 'lakemq meta status' names them"
        yield Check("meta", State.FAILING, "the MetaService has no leader", advice)
    for node in found.nodes:
        yield from _of_node(node)
    for name, reason in found.missing.items():
        advice = "what it alone knows is missing below; its log says more"
        yield Check("nodes", State.WARNING, f"{name} does not answer: {reason}", advice)


def _of_node(node: dict[str, Any]) -> Iterator[Check]:
    name, state = node["node"], node["state"]
    if state == "fenced":
        advice = "start it, or 'lakemq node decommission' if it is gone for good"
        yield Check("nodes", State.FAILING, f"{name} is not there", advice)
        return
    if state == "draining":
        advice = "'lakemq node undrain' lets it take part again"
        yield Check("nodes", State.WARNING, f"{name} drains", advice)
    if (node["silent_s"] or 0.0) > SILENT_S:
        advice = "look at its load and at the network"
        said = f"{name} was heard of {node['silent_s']:.0f} s ago"
        yield Check("nodes", State.WARNING, said, advice)
    used = node["figures"].get("disk_used_ratio", 0.0)
    if used >= DISK_WARNING:
        state = State.FAILING if used >= DISK_FAILING else State.WARNING
        advice = "shorten the retention of topics, add disk or nodes"
        yield Check("disk", state, f"{name} has used {used:.0%} of its disk", advice)


def _of_partitions(found: Reading) -> Iterator[Check]:
    for lack, state, advice in _LACKS:
        count = found.cluster["lacks"].get(lack, 0)
        if count:
            named = ", ".join(found.lacking.get(lack, ()))
            said = f"{count:,} {lack}" + (f": {named}" if named else "")
            yield Check("partitions", state, said, advice)


def _of_the_rest(found: Reading) -> Iterator[Check]:
    for plugin in found.failed_plugins:
        yield Check(
            "plugins", State.FAILING, plugin, "'lakemq config check' on that node says more"
        )
    if found.slow:
        advice = "'lakemq mqtt slow' names them"
        yield Check("mqtt", State.WARNING, f"{found.slow:,} slow subscribers", advice)
