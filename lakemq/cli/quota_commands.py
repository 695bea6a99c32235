"""`lakemq quota`: how much somebody may use a second on each node, kept by the MetaService."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from lakemq.broker_core.security.settings import QuotaSettings
from lakemq.cli.meta_access import fail
from lakemq.cli.meta_options import AskMeta, asks_meta
from lakemq.meta_service.api.auth import Quota

quota = typer.Typer(
    no_args_is_help=True, help="How much somebody may use a second on each node; more has to wait."
)
Who = Annotated[str, typer.Argument(metavar="WHO", help="user:NAME, role:NAME, anonymous or any.")]
Limit = Annotated[int | None, typer.Option(min=1)]


def _principal(who: str) -> str:
    return "*" if who == "any" else who


@quota.command("set")
@asks_meta
def set_quota(
    who: Who,
    bytes_in_per_s: Limit = None,
    bytes_out_per_s: Limit = None,
    records_per_s: Limit = None,
    *,
    ask: AskMeta,
) -> None:
    """Set somebody's quota in place of the one it has; what is left out is not limited."""
    try:
        QuotaSettings(who=who)
    except ValidationError:
        fail(f"{who!r} is none of user:NAME, role:NAME, anonymous, any")
    if bytes_in_per_s is bytes_out_per_s is records_per_s is None:
        fail("give a limit: --bytes-in-per-s, --bytes-out-per-s or --records-per-s")
    made = Quota(
        _principal(who),
        bytes_in_per_s=bytes_in_per_s,
        bytes_out_per_s=bytes_out_per_s,
        records_per_s=records_per_s,
    )
    ask(lambda meta: meta.put_quota(made))
    typer.echo(f"set the quota of {who}")


@quota.command("list")
@asks_meta
def list_quotas(
    *,
    ask: AskMeta,
) -> None:
    """List the quotas that the MetaService keeps."""
    kept = ask(lambda meta: meta.quotas())
    table = Table(box=None, pad_edge=False)
    for heading in ("who", "bytes in/s", "bytes out/s", "records/s"):
        table.add_column(heading, justify="left" if heading == "who" else "right")
    for each in kept:
        limits = (each.bytes_in_per_s, each.bytes_out_per_s, each.records_per_s)
        shown = ["-" if limit is None else f"{limit:,}" for limit in limits]
        table.add_row("any" if each.principal == "*" else each.principal, *shown)
    Console().print(table)


@quota.command("remove")
@asks_meta
def remove(
    who: Who,
    *,
    ask: AskMeta,
) -> None:
    """Remove somebody's quota."""
    name = _principal(who)
    ask(lambda meta: meta.delete_quota(name))
    typer.echo(f"removed the quota of {who}")
