"""What commands print, as text or as JSON, and the codes that they end with.

With `--output json` standard output holds JSON alone: one document (an array for a list), or one
object a line where records or findings come one by one. Everything else goes to standard error,
where an error is an object with `error`, `code` and `exit_code`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final, NoReturn

import typer


class Output(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


class ExitCode(IntEnum):
    """What a command ends with; 128 + N when signal N has ended it."""

    DONE = 0
    FAILED = 1
    """It was refused, or what was checked is not so."""
    USAGE = 2
    """The command line or the configuration is wrong."""
    UNAVAILABLE = 3
    """No answer, or not now: the same command may succeed later."""
    UNKNOWN = 4
    """What was named does not exist."""
    DENIED = 5
    """Not logged in, or not allowed."""


_format: ContextVar[Output] = ContextVar("output", default=Output.TEXT)
_DENIED: Final = frozenset(
    {"NOT_AUTHENTICATED", "UNKNOWN_MECHANISM", "NOT_AUTHORIZED", "PERMISSION_DENIED", "TLS_FAILED"}
)
_USAGE: Final = frozenset({"CONFIG", "OPTION"})


@contextmanager
def printed_as(output: Output) -> Iterator[None]:
    """How everything is printed until the end of the block."""
    token = _format.set(output)
    try:
        yield
    finally:
        _format.reset(token)


def is_json() -> bool:
    """Whether JSON is asked for."""
    return _format.get() is Output.JSON


def exit_code_of(code: str, *, retriable: bool = False) -> ExitCode:
    """For an error's stable code (`LakeMQError.code`, `MetaError.code`, `code` of a problem)."""
    if code in _DENIED:
        return ExitCode.DENIED
    if code in _USAGE:
        return ExitCode.USAGE
    if code == "NOT_FOUND" or code.startswith("UNKNOWN_"):
        return ExitCode.UNKNOWN
    if code == "OUTCOME_UNKNOWN":  # no answer came, though it is not to be tried again blindly
        return ExitCode.UNAVAILABLE
    return ExitCode.UNAVAILABLE if retriable else ExitCode.FAILED


def fail(
    error: object, exit_code: ExitCode | None = None, *, cause: object = None, code: str = ""
) -> NoReturn:
    """Print the error to standard error, each line after `lakemq: `, and end the command.

    `cause`: the exception behind a text. `code`: the error's stable name; default: its attribute.
    `exit_code`: default as the code says, and FAILED for what has none.
    """
    cause = error if cause is None else cause
    code = code or str(getattr(cause, "code", ""))
    if exit_code is None:
        no_answer = isinstance(cause, ConnectionError | TimeoutError)
        retriable = no_answer or bool(getattr(cause, "retriable", False))
        exit_code = exit_code_of(code, retriable=retriable)
    if is_json():
        found = {"error": str(error), "code": code or exit_code.name, "exit_code": exit_code.value}
        typer.echo(json.dumps(found, ensure_ascii=False), err=True)
    else:
        for line in str(error).splitlines() or [""]:
            typer.echo(f"lakemq: {line}", err=True)
    raise typer.Exit(exit_code) from None


def say(sentence: str, **fields: object) -> None:
    """What a command has done: the sentence, or as JSON one object of the fields."""
    if is_json():
        print_json(fields)
    else:
        typer.echo(sentence)


def progress(sentence: str) -> None:
    """What happens on the way: on standard output, or on standard error beside JSON."""
    typer.echo(sentence, err=is_json())


def confirm(question: str) -> None:
    """Ask on standard error; without a yes the command ends, with exit code 1."""
    typer.confirm(question, abort=True, err=True)


def print_json(value: object) -> None:
    """One line. Dataclasses and named tuples are objects, bytes are text with `\\xNN` for what is
    none."""
    typer.echo(json.dumps(_plain(value), ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            _plain(each)
            for each in (sorted(value) if isinstance(value, set | frozenset) else value)
        ]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def _key(key: object) -> str:
    return str(_plain(key))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, data: object = None
) -> None:
    """Print columns below their headings, or as JSON an array of objects by heading.

    Cells: numbers get separators of thousands, and a column of numbers is aligned to the right;
    None is `-`, a truth yes or no, a sequence its items or `-`. Nothing is cut off or wrapped, so
    that the output can be searched and read by programs. `data`: what JSON shows in place of rows.
    """
    from rich.cells import cell_len  # not for a node that starts

    lines = [tuple(row) for row in rows]
    if is_json():
        keys = [heading.replace(" ", "_").replace("(UTC)", "utc") for heading in headings]
        print_json([dict(zip(keys, line, strict=True)) for line in lines] if data is None else data)
        return
    columns = list(zip(*lines, strict=True)) or [() for _ in headings]
    right = [_are_numbers(column) for column in columns]
    texts = [tuple(headings), *(tuple(map(_cell, line)) for line in lines)]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    for line in texts:
        cells = []
        for cell, width, number in zip(line, widths, right, strict=True):
            padding = " " * (width - cell_len(cell))
            cells.append(padding + cell if number else cell + padding)
        typer.echo("  ".join(cells).rstrip())


def _are_numbers(column: Sequence[object]) -> bool:
    """Also of such as `0.5 s`, which are not text in JSON."""
    found = [each for each in column if each is not None]
    return bool(found) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in found
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return " ".join(map(str, value)) or "-"
    return str(value)
