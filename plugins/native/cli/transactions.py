"""`lakemq transaction`: sinks and transactional ids from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    Yes,
    fail,
    option_groups,
    print_table,
)
from lakemq.plugins.native.cli.commands import client_of

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
        last = "-" if each.last_batch_id < 0 else str(each.last_batch_id)
        rows.append(
            (
                each.kind,
                each.name,
                each.state,
                str(each.epoch),
                last,
                f"{each.staged_batches:,}",
                f"{each.staged_bytes:,}",
                each.detail,
            )
        )
    numbers = ("epoch", "last batch", "staged", "bytes")
    print_table(("kind", "id", "state", *numbers, "detail"), rows, numbers=numbers)


@transaction.command("abort")
@option_groups
def abort(kind: Kind, name: str, *, broker: BrokerOptions) -> None:
    """Fence the producer of a sink or transactional id, and abort what it has staged. A commit that
    has been decided cannot be aborted."""
    _check(kind)
    with client_of(broker) as client:
        client.staging.fence(kind, name)
    typer.echo(f"{kind} {name}: fenced, staged batches aborted")


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
        typer.confirm(
            f"If {kind} {name} is used again, its last batch may be committed twice. Delete it?",
            abort=True,
        )
    with client_of(broker) as client:
        client.staging.delete(kind, name)
    typer.echo(f"deleted {kind} {name}")


def _check(kind: str) -> None:
    if kind not in ("sink", "transaction"):
        fail(f"kind is {kind!r}; it takes sink or transaction")
