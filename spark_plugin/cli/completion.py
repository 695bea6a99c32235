"""Names that a shell completes of exports: topics of the broker that the line names so far."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import typer

from lakemq.broker_core.api.command_line import NAMES_MAX, BrokerOptions
from lakemq.spark_plugin.cli.broker_access import access_of

_TIMEOUT_S: Final = 1.0


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin with `incomplete`, internal ones only where it does; none where no broker
    answers within a second, since a shell has no place for an error."""
    options = [each.name for each in dataclasses.fields(BrokerOptions)]
    given: dict[str, Any] = {name: context.params.get(name) for name in options}
    broker = BrokerOptions(**{name: value for name, value in given.items() if value})
    try:
        from lakemq.spark_plugin.source.broker_reader import open_client

        with open_client(broker.bootstrap, access_of(broker), timeout_s=_TIMEOUT_S) as client:
            found = {each.name for each in client.topics()}
    except Exception:  # whatever it is, a shell would print it into the line that is being typed
        return []
    internal = incomplete.startswith("_")
    wanted = (each for each in found if each.startswith(incomplete))
    return sorted(each for each in wanted if internal or not each.startswith("__"))[:NAMES_MAX]
