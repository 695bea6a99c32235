"""Requests that every node carries out: `?node=*`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.errors import OutcomeUnknown
from lakemq.plugins.admin.api.problems import OUTCOME_UNKNOWN, Problem


def nodes_of(node: AdministeredNode) -> list[str]:
    """This node, and those that it can ask."""
    known = node.broker.nodes() if node.broker is not None else ()
    return sorted({node.node_id, *(each.node_id for each in known if "peer" in each.addresses)})


async def carried_out_by(
    nodes: Sequence[str], carry_out: Callable[[str], Awaitable[object]]
) -> list[str]:
    """Nodes that did it; those that know of nothing of the kind need not. Raises Problem: none of
    them knows of it; 503: some did not do it, which a repeat makes up for; 504: nor is it known
    whether they did."""
    found = await asyncio.gather(*map(carry_out, nodes), return_exceptions=True)
    done: list[str] = []
    unknown: list[Problem] = []
    failed: list[Problem] = []
    said: list[str] = []
    for node, outcome in zip(nodes, found, strict=True):
        if not isinstance(outcome, BaseException):
            done.append(node)
        elif not isinstance(outcome, Problem):
            raise outcome
        elif outcome.status == 404:
            unknown.append(outcome)
        else:
            failed.append(outcome)
            said.append(f"{node}: {outcome}")
    if failed:
        so_far = f"done by {', '.join(done) or 'no node'}"
        if any(each.answer.type == OUTCOME_UNKNOWN for each in failed):
            raise Problem(504, OutcomeUnknown.code, f"{so_far}, perhaps not by {'; '.join(said)}")
        raise Problem(503, "UNAVAILABLE", f"{so_far}, not by {'; '.join(said)}", retriable=True)
    if not done:
        raise unknown[0]
    return done
