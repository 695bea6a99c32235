"""Names that a shell completes when Tab is pressed: topics, consumer groups, queues' groups,
subjects of schemas.

They come from the broker that the command line names so far (`--bootstrap`, `LAKEMQ_BOOTSTRAP`,
else this machine's). Where none answers within a second, or it refuses, there are no names: a shell
has no place for an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer

from lakemq.broker_core.api.command_line import NAMES_MAX, BrokerOptions
from lakemq.plugins.native.cli.connection import login_for, tls_of
from lakemq.plugins.native.sdk import SyncClient

_TIMEOUT_S: Final = 1.0


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Those that begin with `incomplete`; internal ones (`__...`) only where it begins so."""
    found = _names(context, incomplete, lambda client: (each.name for each in client.topics()))
    return [name for name in found if incomplete.startswith("_") or not name.startswith("__")]


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups that begin with `incomplete`."""
    return _names(context, incomplete, lambda client: (each.name for each in client.groups()))


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Groups of queues that begin with `incomplete`."""
    return _names(
        context, incomplete, lambda client: (each.group for each in client.admin.queues())
    )


def subject_names(context: typer.Context, incomplete: str) -> list[str]:
    """Subjects of schemas that begin with `incomplete`."""
    return _names(
        context, incomplete, lambda client: (each.name for each in client.schemas.subjects())
    )


def _names(
    context: typer.Context, incomplete: str, ask: Callable[[SyncClient], Iterable[str]]
) -> list[str]:
    names = [field.name for field in dataclasses.fields(BrokerOptions)]
    given = {name: context.params.get(name) for name in names}
    broker = BrokerOptions(**{name: value for name, value in given.items() if value})
    try:
        with SyncClient(
            broker.bootstrap, timeout_s=_TIMEOUT_S, tls=tls_of(broker), login=login_for(broker)
        ) as client:
            found = {name for name in ask(client) if name.startswith(incomplete)}
    except Exception:  # whatever it is, a shell would print it into the line that is being typed
        return []
    return sorted(found)[:NAMES_MAX]


TopicName = Annotated[str, typer.Argument(autocompletion=topic_names)]
GroupName = Annotated[str, typer.Argument(autocompletion=group_names)]
SubjectName = Annotated[str, typer.Argument(autocompletion=subject_names)]
QueueName = Annotated[str, typer.Argument(autocompletion=queue_names)]
