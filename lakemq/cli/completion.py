"""Names that a shell completes from the MetaService: nodes, members, topics, users, rules.

They come from the members that the command line names so far (`--address`,
`LAKEMQ_META_ADDRESS`, else this machine's). Where none answers within a second, or it refuses,
there are no names: a shell has no place for an error.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from lakemq.broker_core.api.command_line import NAMES_MAX, MetaOptions
from lakemq.broker_core.security.authn.api_keys import is_key
from lakemq.cli.meta_access import credentials_of
from lakemq.cli.users.user_file import users_of

if TYPE_CHECKING:
    from lakemq.meta_service.api.remote.client import RemoteClient

_TIMEOUT_S: Final = 1.0


def node_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Registered nodes; behind a comma, as in a list of them, the next one."""

    async def ask(client: RemoteClient) -> Iterable[str]:
        return [each.node_id for each in await client.nodes()]

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _names(context, last, ask)]


def member_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Members of the Raft group."""

    async def ask(client: RemoteClient) -> Iterable[str]:
        return (await client.status()).members

    return _names(context, incomplete, ask)


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Topics; internal ones (`__...`) only where it begins so."""

    async def ask(client: RemoteClient) -> Iterable[str]:
        _, topics = await client.topics()
        return [each.name for each in topics if _is_wanted(each.name, incomplete)]

    return _names(context, incomplete, ask)


def partitions(context: typer.Context, incomplete: str) -> list[str]:
    """`TOPIC/NUMBER`."""

    async def ask(client: RemoteClient) -> Iterable[str]:
        _, topics = await client.topics()
        return [
            f"{topic.name}/{each.partition}"
            for topic in topics
            for each in topic.partitions
            if _is_wanted(topic.name, incomplete)
        ]

    return _names(context, incomplete, ask)


def user_names(context: typer.Context, incomplete: str) -> list[str]:
    """Users, of the password file where the line has `--file`."""
    file = context.params.get("file")
    if file:
        try:
            return sorted(name for name in users_of(Path(file)) if name.startswith(incomplete))
        except Exception:  # whatever is wrong with it, the command will say
            return []

    async def ask(client: RemoteClient) -> Iterable[str]:
        return [each.name for each in await client.users() if not is_key(each.attributes)]

    return _names(context, incomplete, ask)


def rule_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Rules that the MetaService keeps."""

    async def ask(client: RemoteClient) -> Iterable[str]:
        return [each.rule_id for each in await client.rules()]

    return _names(context, incomplete, ask)


def quota_holders(context: typer.Context, incomplete: str) -> list[str]:
    """Whom a quota is kept for, `any` for each other one."""

    async def ask(client: RemoteClient) -> Iterable[str]:
        return [
            "any" if each.principal == "*" else each.principal for each in await client.quotas()
        ]

    return _names(context, incomplete, ask)


def _is_wanted(topic: str, incomplete: str) -> bool:
    return incomplete.startswith("_") or not topic.startswith("__")


def _names(
    context: typer.Context,
    incomplete: str,
    ask: Callable[[RemoteClient], Awaitable[Iterable[str]]],
) -> list[str]:
    from lakemq.meta_service.api.remote.client import RemoteClient

    names = [field.name for field in dataclasses.fields(MetaOptions)]
    given = {name: context.params.get(name) for name in names}
    members = MetaOptions(**{name: value for name, value in given.items() if value})

    async def asked() -> Iterable[str]:
        client = RemoteClient(
            list(members.address), credentials=credentials_of(members), timeout_s=_TIMEOUT_S,
            attempt_s=_TIMEOUT_S,
        )  # fmt: skip
        try:
            return await ask(client)
        finally:
            await client.close()

    try:
        found = {name for name in asyncio.run(asked()) if name.startswith(incomplete)}
    except Exception:  # whatever it is, a shell would print it into the line that is being typed
        return []
    return sorted(found)[:NAMES_MAX]
