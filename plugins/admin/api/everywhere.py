"""Requests that every node carries out: `?node=*`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.plugins.admin.api.problems import Problem


def nodes_of(node: AdministeredNode) -> list[str]:
    """This node, and those that it can ask."""
    known = node.broker.nodes() if node.broker is not None else ()
    return sorted({node.node_id, *(each.node_id for each in known if "peer" in each.addresses)})


async def carried_out_by(
    nodes: Sequence[str], carry_out: Callable[[str], Awaitable[object]]
) -> list[str]:
    """Nodes that did it; those that know of nothing of the kind need not. Raises Problem: none of
    them knows of it; 503: some did not do it, which a repeat makes up for."""
    found = await asyncio.gather(*map(carry_out, nodes), return_exceptions=True)
    done: list[str] = []
    unknown: list[Problem] = []
    failed: list[str] = []
    for node, outcome in zip(nodes, found, strict=True):
        if not isinstance(outcome, BaseException):
            done.append(node)
        elif not isinstance(outcome, Problem):
            raise outcome
        elif outcome.status == 404:
            unknown.append(outcome)
        else:
            failed.append(f"{node}: {outcome}")
    if failed:
        raise Problem(
            503, "UNAVAILABLE",
            f"done by {', '.join(done) or 'no node'}, not by {'; '.join(failed)}",
            retriable=True,
        )  # fmt: skip
    if not done:
        raise unknown[0]
    return done
