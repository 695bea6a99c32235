"""`lakemq meta`: the Raft group: status, members, digest, snapshot, backup and restore."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import MetaStatus
from lakemq.meta_service.cli import nodes as cli_nodes
from lakemq.meta_service.cli.calls import DEFAULT as _DEFAULT
from lakemq.meta_service.cli.calls import Addresses, TlsCa, TlsCert, TlsKey
from lakemq.meta_service.cli.calls import credentials_from as _credentials
from lakemq.meta_service.cli.calls import fail as _fail
from lakemq.meta_service.cli.calls import run as _run
from lakemq.meta_service.cli.calls import show as _show

if TYPE_CHECKING:
    import grpc

meta = typer.Typer(no_args_is_help=True, help="The MetaService: what the cluster agrees on.")
meta.add_typer(cli_nodes.app)


async def _statuses(
    addresses: list[str], credentials: grpc.ChannelCredentials | None
) -> dict[str, MetaStatus | MetaError]:
    """Of each member that was named, what it says of itself."""
    from lakemq.meta_service.cli import operations

    told = await asyncio.gather(
        *(operations.status(address, credentials) for address in addresses), return_exceptions=True
    )
    found: dict[str, MetaStatus | MetaError] = {}
    for address, answer in zip(addresses, told, strict=True):
        if not isinstance(answer, MetaStatus | MetaError):
            raise answer
        found[address] = answer
    return found


@meta.command()
def status(
    details: Annotated[
        bool, typer.Option("--details", help="All that each member tells, line by line.")
    ] = False,
    address: Addresses = _DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """What each member says of itself."""
    found = _run(lambda: _statuses(address, _credentials(tls_cert, tls_key, tls_ca)))
    answers = {where: told for where, told in found.items() if isinstance(told, MetaStatus)}
    rows = []
    for where, told in answers.items():
        role = "leader" if told.leader_id == told.member_id else "follower"
        numbers = (told.term, told.applied_index, told.revision)
        about = (told.member_id, role, told.leader_id or "-", *map(str, numbers))
        rows.append((where, *about, told.cluster_id))
    if rows:
        _show(
            ("address", "member", "role", "leader", "term", "applied", "revision", "cluster"), rows
        )
    for where, told in answers.items() if details else ():
        typer.echo(f"\n{told.member_id} at {where}")
        for name, value in sorted(told.detail.items()):
            typer.echo(f"  {name}: {value}")
    for where, error in found.items():
        if isinstance(error, MetaError):
            typer.echo(f"{where}: {error}", err=True)
    if len(answers) < len(found):
        raise typer.Exit(1)


@meta.command()
def members(
    address: Addresses = _DEFAULT, tls_cert: TlsCert = "", tls_key: TlsKey = "", tls_ca: TlsCa = ""
) -> None:
    """Members of the Raft group, as the first member that answers knows them."""
    found = _run(lambda: _statuses(address, _credentials(tls_cert, tls_key, tls_ca)))
    for told in found.values():
        if isinstance(told, MetaStatus):
            learners = str(told.detail.get("learners", "")).split(", ")
            for name in told.members:
                role = "leader" if name == told.leader_id else ""
                role = "learner" if name in learners else role
                typer.echo(f"{name}  {role}".rstrip())
            return
    _fail(next(iter(found.values())))


@meta.command()
def digest(
    address: Addresses = _DEFAULT, tls_cert: TlsCert = "", tls_key: TlsKey = "", tls_ca: TlsCa = ""
) -> None:
    """Compare the members' states: equal behind the same log index, or something is very wrong."""
    found = _run(lambda: _statuses(address, _credentials(tls_cert, tls_key, tls_ca)))
    seen: dict[int, set[str]] = {}
    for where, told in found.items():
        if isinstance(told, MetaError):
            _fail(f"{where}: {told}")
        state_index, state_digest = int(told.detail["state_index"]), str(told.detail["digest"])
        seen.setdefault(state_index, set()).add(state_digest)
        typer.echo(f"{told.member_id}  index {state_index}  {state_digest}")
    if any(len(digests) > 1 for digests in seen.values()):
        _fail("the members' states differ behind the same log index")
    if len(seen) > 1:
        typer.echo("The members are at different indexes; ask again when nothing is written.")


@meta.command()
def snapshot(
    address: Addresses = _DEFAULT, tls_cert: TlsCert = "", tls_key: TlsKey = "", tls_ca: TlsCa = ""
) -> None:
    """Let members make their state durable, so that their logs can be shortened."""
    from lakemq.meta_service.cli import operations

    credentials = _credentials(tls_cert, tls_key, tls_ca)
    for where in address:
        index = _run(lambda where=where: operations.snapshot(where, credentials))  # type: ignore[misc] # mypy cannot infer a lambda with a default
        typer.echo(f"{where}: durable up to log index {index}")


@meta.command()
def transfer(
    member: Annotated[str, typer.Argument(help="Who shall lead; empty: whoever is ready.")] = "",
    address: Addresses = _DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """Move the leadership to another member, without waiting for an election."""
    from lakemq.meta_service.cli import operations

    credentials = _credentials(tls_cert, tls_key, tls_ca)
    leader = _run(lambda: operations.transfer(address, member, credentials))
    typer.echo(f"asked by {leader}")


@meta.command()
def promote(
    member: Annotated[str, typer.Argument(help="Id of a learner that has the log.")],
    address: Addresses = _DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """Let a learner vote. A node that joins does so by itself; this is for one that went away."""
    from lakemq.meta_service.cli import operations

    credentials = _credentials(tls_cert, tls_key, tls_ca)
    voters = _run(lambda: operations.promote_member(address, member, credentials))
    typer.echo(f"voters: {', '.join(voters)}")


@meta.command()
def remove(
    member: Annotated[str, typer.Argument(help="Id of a member.")],
    address: Addresses = _DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """Remove a member from the group, dead or alive; stop its node afterwards."""
    from lakemq.meta_service.cli import operations

    credentials = _credentials(tls_cert, tls_key, tls_ca)
    voters = _run(lambda: operations.remove_member(address, member, credentials))
    typer.echo(f"voters: {', '.join(voters)}")


@meta.command()
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    address: Addresses = _DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """Write the whole catalog, as of now, to a file. The cluster goes on meanwhile."""
    from lakemq.meta_service.cli import operations

    credentials = _credentials(tls_cert, tls_key, tls_ca)
    note = _run(lambda: operations.backup(address, file, credentials))
    typer.echo(f"{file}: {note.size} bytes, log index {note.log_index}, cluster {note.cluster_id}")


@meta.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `backup` wrote.", exists=True)],
    data_dir: Annotated[Path, typer.Argument(help="The node's data folder; its `meta` is made.")],
    cluster_id: Annotated[
        str, typer.Option(help="The new cluster id; the same for all members of a group.")
    ] = "",
) -> None:
    """Make a member's folder from a backup, under a new cluster id. The node must not run.

    Restore every member of a group from the same file: the first without --cluster-id, the others
    with the id that this printed. Members of the old cluster cannot join the new one.
    """
    from lakemq.meta_service.storage.backup import restore as restore_folder

    try:
        new_id = restore_folder(file, data_dir / "meta", cluster_id)
    except (MetaError, OSError) as error:
        _fail(error)
    typer.echo(f"cluster {new_id}")
