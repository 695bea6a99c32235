"""`lakemq transaction`: sinks and transactional ids from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    ExitCode,
    Yes,
    confirm,
    fail,
    option_groups,
    print_table,
    say,
)
from lakemq.plugins.native.cli.connection import client_of

transaction = typer.Typer(
    no_args_is_help=True, help="List and abort staged batches and transactions."
)
Kind = Annotated[str, typer.Argument(help="sink or transaction")]


@transaction.command("list")
@option_groups
def list_owners(broker: BrokerOptions) -> None:
    """List all sinks and transactional ids: what is staged, what was committed last."""
    with client_of(broker) as client:
        found = client.staging.owners()
    rows = []
    for each in found:
        rows.append(
            (
                each.kind,
                each.name,
                each.state,
                each.epoch,
                None if each.last_batch_id < 0 else each.last_batch_id,
                each.staged_batches,
                each.staged_bytes,
                each.detail,
            )
        )
    headings = ("kind", "id", "state", "epoch", "last batch", "staged", "bytes", "detail")
    print_table(headings, rows)


@transaction.command("abort")
@option_groups
def abort(kind: Kind, name: str, *, broker: BrokerOptions) -> None:
    """Fence the producer of a sink or transactional id, and abort what it has staged. A commit that
    has been decided cannot be aborted."""
    _check(kind)
    with client_of(broker) as client:
        client.staging.fence(kind, name)
    say(f"{kind} {name}: fenced, staged batches aborted", kind=kind, id=name, fenced=True)


@transaction.command("delete")
@option_groups
def delete(
    kind: Kind,
    name: str,
    yes: Yes = False,
    *,
    broker: BrokerOptions,
) -> None:
    """Delete a sink or transactional id, and the number of its last committed batch."""
    _check(kind)
    if not yes:
        confirm(
            f"If {kind} {name} is used again, its last batch may be committed twice. Delete it?"
        )
    with client_of(broker) as client:
        client.staging.delete(kind, name)
    say(f"deleted {kind} {name}", kind=kind, id=name, deleted=True)


def _check(kind: str) -> None:
    if kind not in ("sink", "transaction"):
        fail(f"kind is {kind!r}; it takes sink or transaction", ExitCode.USAGE)
