"""The options of a command that asks the MetaService, written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, get_type_hints

from lakemq.cli.meta_access import DEFAULT_ADDRESS, Addresses, TlsCa, TlsCert, TlsKey, ask_meta
from lakemq.meta_service.api.types import MetaClient

T = TypeVar("T")

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "address": (Addresses, DEFAULT_ADDRESS),
    "tls_cert": (TlsCert, ""),
    "tls_key": (TlsKey, ""),
    "tls_ca": (TlsCa, ""),
}


class AskMeta(Protocol):
    """`ask_meta` of the members that the options name."""

    def __call__(self, ask: Callable[[MetaClient], Awaitable[T]]) -> T: ...


def asks_meta(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose keyword `ask` is an `AskMeta`, with options in its place that typer sees."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        chosen = [given.pop(name) for name in _OPTIONS]
        command(**given, ask=functools.partial(ask_meta, *chosen))

    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    kept = [
        each.replace(annotation=hints[each.name])
        for each in signature.parameters.values()
        if each.name != "ask"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
    ]
    run.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*kept, *added)}
    del run.__wrapped__  # typer would look at the command itself
    return run
