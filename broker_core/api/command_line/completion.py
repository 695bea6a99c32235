"""Names that a shell completes from the HTTP admin of the node that the command line names so far
(`--admin`, `LAKEMQ_ADMIN`, else this machine's). Where it does not answer within a second, or
refuses, there are no names: a shell has no place for an error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

import typer

from lakemq.broker_core.api.admin_client import ask
from lakemq.broker_core.api.command_line import NAMES_MAX, AdminOptions

_TIMEOUT_S: Final = 1.0


def listed_names(path: str, field: str) -> Callable[[typer.Context, str], list[str]]:
    """For `typer.Argument(autocompletion=...)`: a field of the rows of the list at `path` below
    `/api/v1/`."""

    def names(context: typer.Context, incomplete: str) -> list[str]:
        options = [each.name for each in dataclasses.fields(AdminOptions)]
        given: dict[str, Any] = {name: context.params.get(name) for name in options}
        node = AdminOptions(**{name: value for name, value in given.items() if value})
        query = urlencode({"limit": NAMES_MAX, "q": incomplete, "fields": field})
        try:
            answer = ask(node, f"api/v1/{path}?{query}", timeout_s=_TIMEOUT_S)
            found = {str(each[field]) for each in json.loads(answer)["data"]}
        except Exception:  # a shell would print it into the line that is being typed
            return []
        return sorted(name for name in found if name.startswith(incomplete))

    return names
