"""`lakemq quota`: rate limits of principals on each node, kept by the MetaService."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from lakemq.broker_core.api.command_line import (
    ExitCode,
    MetaOptions,
    fail,
    option_groups,
    print_table,
    say,
)
from lakemq.broker_core.security.settings import QuotaSettings
from lakemq.cli.completion import quota_holders
from lakemq.cli.meta_access import ask_meta
from lakemq.meta_service.api.auth import Quota

quota = typer.Typer(
    no_args_is_help=True,
    help="Rate limits of principals on each node; requests above them are delayed.",
)
Who = Annotated[
    str,
    typer.Argument(
        metavar="WHO", help="user:NAME, role:NAME, anonymous or any.", autocompletion=quota_holders
    ),
]
Limit = Annotated[int | None, typer.Option(min=1)]


def _principal(who: str) -> str:
    return "*" if who == "any" else who


@quota.command("set")
@option_groups
def set_quota(
    who: Who,
    bytes_in_per_s: Limit = None,
    bytes_out_per_s: Limit = None,
    records_per_s: Limit = None,
    *,
    members: MetaOptions,
) -> None:
    """Set the quota of a principal, replacing the one it has. Limits not given are unlimited."""
    try:
        QuotaSettings(who=who)
    except ValidationError:
        fail(f"{who!r} is none of user:NAME, role:NAME, anonymous, any", ExitCode.USAGE)
    if bytes_in_per_s is bytes_out_per_s is records_per_s is None:
        fail("give a limit: --bytes-in-per-s, --bytes-out-per-s or --records-per-s", ExitCode.USAGE)
    made = Quota(
        _principal(who),
        bytes_in_per_s=bytes_in_per_s,
        bytes_out_per_s=bytes_out_per_s,
        records_per_s=records_per_s,
    )
    ask_meta(members, lambda meta: meta.put_quota(made))
    say(f"set the quota of {who}", who=who, set=True)


@quota.command("list")
@option_groups
def list_quotas(
    *,
    members: MetaOptions,
) -> None:
    """List the quotas that the MetaService keeps."""
    kept = ask_meta(members, lambda meta: meta.quotas())
    rows = [
        (
            "any" if each.principal == "*" else each.principal,
            each.bytes_in_per_s,
            each.bytes_out_per_s,
            each.records_per_s,
        )
        for each in kept
    ]
    print_table(("who", "bytes in/s", "bytes out/s", "records/s"), rows)


@quota.command("delete")
@option_groups
def delete(
    who: Who,
    *,
    members: MetaOptions,
) -> None:
    """Delete a quota."""
    name = _principal(who)
    ask_meta(members, lambda meta: meta.delete_quota(name))
    say(f"deleted the quota of {who}", deleted=who)
