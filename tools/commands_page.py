"""docs/commands.md, from the tree of commands, as `--help` shows them."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final
from unittest import mock

import typer

from lakemq.cli import commands as cli

_INTRODUCTION: Final = """\
# Commands

<!-- Generated from the commands' own help by `make generate`; do not edit. -->

Every command, with the plugins that are built in. Options in common, JSON and exit codes:
[the command line](cli.md).
"""
_SHARED: Final = ("Connection", "Output")
"""Panels of options that many commands have: told once, named at each command."""
_PLACES: Final = ("bootstrap", "address", "admin")
"""Parameters that say what a command connects to."""


def commands_page() -> str:
    """The whole page."""
    with mock.patch.dict(os.environ):
        os.environ.pop("LAKEMQ_CONFIG", None)  # which may turn plugins off
        cli.add_plugin_commands()
    whole = typer.main.get_command(cli.app)
    found = list(_commands(whole, ("lakemq",)))
    parts = [_INTRODUCTION, _shared([command for _, command in found])]
    group = ""
    for words, command in found:
        if len(words) > 2 and words[1] != group:
            parts.append(f"## {words[1]}\n\n{_text(whole.commands[words[1]])}\n")  # type: ignore[attr-defined]  # it has commands
        group = words[1]
        parts.append(_section(words, command, "###" if len(words) > 2 else "##"))
    return "\n".join(parts)


def _commands(at: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Those that can be run, in the order of their names."""
    inner = getattr(at, "commands", {})
    if len(words) > 1 and (not inner or at.invoke_without_command):
        yield words, at
    for name in sorted(inner):
        if not inner[name].hidden:
            yield from _commands(inner[name], (*words, name))


def _shared(commands: list[Any]) -> str:
    """Each shared option once."""
    found: dict[str, Any] = {}
    for command in commands:
        for param in command.params:
            if _panel(param) in _SHARED:
                found.setdefault(param.name, param)
    lines = ["## Options in common", "", *_HEADINGS]
    lines += [_row(param, commands[0]) for param in found.values()]
    return "\n".join(lines) + "\n"


_HEADINGS: Final = ("| option | default | environment | meaning |", "|---|---|---|---|")


def _section(words: tuple[str, ...], command: Any, heading: str) -> str:
    own = [each for each in command.params if _panel(each) not in _SHARED and _is_told(each)]
    usage = command.collect_usage_pieces(_context(command))
    lines = [f"{heading} {' '.join(words)}", "", f"    {' '.join([*words, *usage])}"]
    lines += ["", _text(command)]
    shared = [each.name for each in command.params if each.name in _PLACES]
    if shared:
        lines += ["", f"Connects by `--{shared[0]}`."]
    if own:
        lines += ["", *_HEADINGS, *(_row(each, command) for each in own)]
    return "\n".join(lines) + "\n"


def _is_told(param: Any) -> bool:
    """An argument without a word of its own is in the first line already."""
    is_bare = param.param_type_name == "argument" and not (param.help or _default(param))
    return not (is_bare or param.hidden or "--help" in param.opts)


def _panel(param: Any) -> Any:
    return getattr(param, "rich_help_panel", None)


def _context(command: Any) -> Any:
    return command.context_class(command)


def _row(param: Any, command: Any) -> str:
    if param.param_type_name == "argument":
        name = f"`{param.get_usage_pieces(_context(command))[0]}`"
    else:
        value = "" if param.is_flag else f" {param.display_type_rich(_context(command))}"
        name = f"`{', '.join([*param.opts, *param.secondary_opts])}{value}`"
    meaning = _words(param.help or "")
    if param.required and param.param_type_name != "argument":
        meaning = f"{meaning} (must be given)".lstrip()
    cells = (name, _default(param), f"`{param.envvar}`" if param.envvar else "", meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(param: Any) -> str:
    value = param.default
    if callable(value) or value in (None, "", False) or param.required:
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    return f"`{value}`" if value is not True else "yes"


def _text(command: Any) -> str:
    return "\n\n".join(map(_words, inspect.cleandoc(command.help or "").split("\n\n")))


def _words(text: str) -> str:
    """One line, in which what looks like markup is text."""
    return re.sub(r"([<*])", r"\\\1", " ".join(text.split()))
