"""`lakemq transaction`: sinks and transactional ids from the command line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lakemq.plugins.native.cli.commands import Bootstrap, client_of, fail

transaction = typer.Typer(
    no_args_is_help=True, help="List and abort staged batches and transactions."
)
Kind = Annotated[str, typer.Argument(help="sink or transaction")]


@transaction.command("list")
def list_owners(bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """List all sinks and transactional ids: what is staged, what was committed last."""
    with client_of(bootstrap) as client:
        found = client.staging.owners()
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "id", "state", "epoch", "last batch", "staged", "bytes", "detail"):
        words = heading in ("kind", "id", "state", "detail")
        table.add_column(heading, justify="left" if words else "right", overflow="fold")
    for each in found:
        last = "-" if each.last_batch_id < 0 else str(each.last_batch_id)
        table.add_row(
            each.kind, each.name, each.state, str(each.epoch), last,
            f"{each.staged_batches:,}", f"{each.staged_bytes:,}", each.detail,
        )  # fmt: skip
    Console().print(table)


@transaction.command("abort")
def abort(kind: Kind, name: str, bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """Fence whoever acts for a sink or transactional id, and forget what it has staged. A commit
    that is decided can't be aborted."""
    _check(kind)
    with client_of(bootstrap) as client:
        client.staging.fence(kind, name)
    typer.echo(f"{kind} {name}: fenced, nothing is staged")


@transaction.command("forget")
def forget(
    kind: Kind,
    name: str,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Forget a sink or transactional id, and which batch it committed last."""
    _check(kind)
    if not yes:
        typer.confirm(
            f"If {kind} {name} comes back, it may commit its last batch a second time. Forget it?",
            abort=True,
        )
    with client_of(bootstrap) as client:
        client.staging.forget(kind, name)
    typer.echo(f"{kind} {name} is forgotten")


def _check(kind: str) -> None:
    if kind not in ("sink", "transaction"):
        fail(f"kind is {kind!r}; it takes sink or transaction")
