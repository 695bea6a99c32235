"""`lakemq meta`: the Raft group: status, members, digest, snapshot, backup and restore."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.broker_core.api.command_line import (
    ExitCode,
    MetaOptions,
    fail,
    is_json,
    option_groups,
    print_table,
    progress,
    say,
)
from lakemq.cli.completion import member_ids
from lakemq.cli.meta_access import credentials_of, run_meta
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import MetaStatus

if TYPE_CHECKING:
    import grpc

meta = typer.Typer(no_args_is_help=True, help="The MetaService: the catalog, replicated by Raft.")


async def _statuses(
    addresses: list[str], credentials: grpc.ChannelCredentials | None
) -> dict[str, MetaStatus | MetaError]:
    """The status of each address, or why it could not be read."""
    from lakemq.meta_service.api import operations

    answers = await asyncio.gather(
        *(operations.status(address, credentials) for address in addresses), return_exceptions=True
    )
    found: dict[str, MetaStatus | MetaError] = {}
    for address, answer in zip(addresses, answers, strict=True):
        if not isinstance(answer, MetaStatus | MetaError):
            raise answer
        found[address] = answer
    return found


@meta.command()
@option_groups
def status(
    details: Annotated[
        bool, typer.Option("--details", help="All fields that each member reports, one a line.")
    ] = False,
    *,
    members: MetaOptions,
) -> None:
    """Show the status of each member."""
    found = run_meta(lambda: _statuses(members.address, credentials_of(members)))
    answers = {where: answer for where, answer in found.items() if isinstance(answer, MetaStatus)}
    rows = []
    for where, answer in answers.items():
        role = "leader" if answer.leader_id == answer.member_id else "follower"
        numbers = (answer.term, answer.applied_index, answer.revision)
        about = (answer.member_id, role, answer.leader_id or None, *numbers)
        rows.append((where, *about, answer.cluster_id))
    if rows or is_json():
        print_table(
            ("address", "member", "role", "leader", "term", "applied", "revision", "cluster"),
            rows,
            data=[{"address": where, **asdict(answer)} for where, answer in answers.items()],
        )
    for where, answer in answers.items() if details and not is_json() else ():
        typer.echo(f"\n{answer.member_id} at {where}")
        for name, value in sorted(answer.detail.items()):
            typer.echo(f"  {name}: {value}")
    for where, error in found.items():
        if isinstance(error, MetaError):
            typer.echo(f"{where}: {error}", err=True)
    if len(answers) < len(found):
        raise typer.Exit(ExitCode.UNAVAILABLE)


@meta.command("members")
@option_groups
def list_members(members: MetaOptions) -> None:
    """List the members of the Raft group, as the first one that answers knows them."""
    found = run_meta(lambda: _statuses(members.address, credentials_of(members)))
    for answer in found.values():
        if isinstance(answer, MetaStatus):
            learners = str(answer.detail.get("learners", "")).split(", ")
            roles = dict.fromkeys(answer.members, "")
            roles |= dict.fromkeys(set(learners) & set(roles), "learner")
            roles |= {answer.leader_id: "leader"} if answer.leader_id else {}
            lines = (f"{name}  {role}".rstrip() for name, role in roles.items())
            say("\n".join(lines), members=roles)
            return
    fail(next(iter(found.values())))


@meta.command()
@option_groups
def digest(members: MetaOptions) -> None:
    """Compare the digests of the members' states: at the same log index they must be equal."""
    found = run_meta(lambda: _statuses(members.address, credentials_of(members)))
    seen: dict[int, set[str]] = {}
    rows = []
    for where, answer in found.items():
        if isinstance(answer, MetaError):
            fail(f"{where}: {answer}")
        state_index, state_digest = int(answer.detail["state_index"]), str(answer.detail["digest"])
        seen.setdefault(state_index, set()).add(state_digest)
        rows.append({"member": answer.member_id, "index": state_index, "digest": state_digest})
    say("\n".join("{member}  index {index}  {digest}".format(**row) for row in rows), digests=rows)
    if any(len(digests) > 1 for digests in seen.values()):
        fail("the members' states differ at the same log index")
    if len(seen) > 1:
        progress("The members are at different log indexes; repeat it while nothing is written.")


@meta.command()
@option_groups
def snapshot(members: MetaOptions) -> None:
    """Let members take a snapshot of their state, so that their logs can be truncated."""
    from lakemq.meta_service.api import operations

    credentials = credentials_of(members)
    indexes = {
        where: run_meta(lambda where=where: operations.snapshot(where, credentials))  # type: ignore[misc] # mypy cannot infer a lambda with a default
        for where in members.address
    }
    lines = (f"{where}: durable up to log index {index}" for where, index in indexes.items())
    say("\n".join(lines), durable_log_index=indexes)


@meta.command()
@option_groups
def transfer(
    member: Annotated[
        str,
        typer.Argument(
            help="The new leader; default: one that has the whole log.", autocompletion=member_ids
        ),
    ] = "",
    *,
    members: MetaOptions,
) -> None:
    """Transfer leadership to another member."""
    from lakemq.meta_service.api import operations

    credentials = credentials_of(members)
    leader = run_meta(lambda: operations.transfer(members.address, member, credentials))
    say(f"leadership transfer started by {leader}", started_by=leader)


@meta.command()
@option_groups
def promote(
    member: Annotated[
        str, typer.Argument(help="Id of a learner that has caught up.", autocompletion=member_ids)
    ],
    *,
    members: MetaOptions,
) -> None:
    """Make a learner a voter. A node that joins is promoted automatically; this is for one whose
    promotion was interrupted."""
    from lakemq.meta_service.api import operations

    credentials = credentials_of(members)
    voters = run_meta(lambda: operations.promote_member(members.address, member, credentials))
    say(f"voters: {', '.join(voters)}", voters=voters)


@meta.command()
@option_groups
def remove(
    member: Annotated[str, typer.Argument(help="Id of a member.", autocompletion=member_ids)],
    *,
    members: MetaOptions,
) -> None:
    """Remove a member from the group, dead or alive; stop its node afterwards."""
    from lakemq.meta_service.api import operations

    credentials = credentials_of(members)
    voters = run_meta(lambda: operations.remove_member(members.address, member, credentials))
    say(f"voters: {', '.join(voters)}", voters=voters)


@meta.command()
@option_groups
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    *,
    members: MetaOptions,
) -> None:
    """Write a consistent copy of the catalog to a file, while the cluster runs."""
    from lakemq.meta_service.api import operations

    credentials = credentials_of(members)
    note = run_meta(lambda: operations.backup(members.address, file, credentials))
    said = f"{file}: {note.size} bytes, log index {note.log_index}, cluster {note.cluster_id}"
    say(said, file=file, bytes=note.size, log_index=note.log_index, cluster=note.cluster_id)


@meta.command()
@option_groups
def verify(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.", exists=True)],
) -> None:
    """Check that a backup is whole and can be restored, by restoring it to a temporary folder."""
    from lakemq.meta_service.storage.backup import verify as verify_file

    try:
        note = verify_file(file)
    except (MetaError, OSError) as error:
        fail(error)
    said = f"{file}: whole, log index {note.log_index}, cluster {note.cluster_id}"
    say(said, file=file, bytes=note.size, log_index=note.log_index, cluster=note.cluster_id)


@meta.command()
@option_groups
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.", exists=True)],
    data_dir: Annotated[
        Path, typer.Argument(help="The node's data folder; `meta` is created there.")
    ],
    cluster_id: Annotated[
        str, typer.Option(help="The new cluster id; the same for all members of a group.")
    ] = "",
) -> None:
    """Create a member's folder from a backup, with a new cluster id. The node must not run.

    Restore every member of a group from the same file: the first without --cluster-id, the others
    with the id that the first command printed. Members of the old cluster cannot join the new one.
    """
    from lakemq.meta_service.storage.backup import restore as restore_folder

    try:
        new_id = restore_folder(file, data_dir / "meta", cluster_id)
    except (MetaError, OSError) as error:
        fail(error)
    say(f"cluster {new_id}", cluster=new_id)
