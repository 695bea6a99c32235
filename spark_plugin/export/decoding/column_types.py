"""The column list of `--schema`, as Spark writes one: `time timestamp, tags array<string>`.

    columns   name type {, name type}
    type      string | binary | boolean | tinyint | smallint | int | bigint | float | double
              | decimal(precision, scale) | date | timestamp | timestamp_ms | timestamp_s
              | array<type> | struct<name: type, ...>

`timestamp` takes ISO 8601 text (UTC where it names no zone), `timestamp_ms` and `timestamp_s` take
numbers since 1970.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, get_args

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.options import nearest

Evolve = Literal["strict", "add", "widen"]
"""What happens to fields without a column: ignored, made columns, or also types made wider."""
EVOLVE: Final = get_args(Evolve)
META: Final = "_meta"
"""Column that says where in the journal a row came from."""

REST: Final = "_rest"
"""Column (string) that takes, as JSON, what of a record has no column of its own."""

SCALARS: Final = (
    "string", "binary", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double",
    "date", "timestamp", "timestamp_ms", "timestamp_s", "decimal",
)  # fmt: skip
_TOP_ONLY: Final = ("date", "timestamp_ms", "timestamp_s")
"""Converted after parsing, which is done for whole columns only."""
_TOKEN: Final = re.compile(r"\s*(?:(\w+)|`([^`]+)`|([<>,:()]))")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_DECIMAL_DIGITS_MAX: Final = 38


class Type(NamedTuple):
    """A type: a scalar's name (`decimal(10,2)` with its digits), or `array` of one unnamed field,
    or `struct` of named fields."""

    name: str
    fields: tuple[tuple[str, Type], ...] = ()


def decimal_digits(name: str) -> tuple[int, int] | None:
    """(precision, scale) of `decimal(10,2)`; None: another type."""
    match = _DECIMAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def parse_schema(text: str) -> tuple[tuple[str, Type], ...]:
    """Column list -> (name, type) pairs. OptionError says where it is wrong."""
    parser = _Parser(text)
    columns = parser.fields(end="", top=True)
    names = [name for name, _ in columns]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"--schema: column {name} is there twice")
    if META in names:
        raise OptionError(f"--schema: {META} is taken by the export's own column")
    return columns


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _next(self) -> str:
        """The next token; `""` at the end."""
        if not self._text[self._at :].strip():
            self._at = len(self._text)
            return ""
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error(f"{self._text[self._at :].strip()[0]!r} is not expected")
        self._at = match.end()
        return match[1] or match[2] or match[3]

    def _error(self, problem: str) -> OptionError:
        return OptionError(
            f"--schema: {problem} at character {self._at} of {self._text!r}; it takes columns such "
            "as 'time timestamp, value double'"
        )

    def fields(self, *, end: str, top: bool = False) -> tuple[tuple[str, Type], ...]:
        """`name type, ...` up to `end`."""
        found: list[tuple[str, Type]] = []
        while True:
            name = self._next()
            if not re.fullmatch(r"[^<>,:]+", name):
                raise self._error("a column name is missing")
            kind = self._next()
            if kind == ":":
                kind = self._next()
            found.append((name, self._type(kind, top)))
            separator = self._next()
            if separator == end:
                return tuple(found)
            if separator != ",":
                raise self._error(f"{separator or 'the end'!r} is not expected")

    def _type(self, name: str, top: bool) -> Type:
        kind = name.lower()
        if kind == "array":
            self._expect("<")
            element = self._type(self._next(), False)
            self._expect(">")
            return Type("array", (("element", element),))
        if kind == "struct":
            self._expect("<")
            return Type("struct", self.fields(end=">"))
        if kind not in SCALARS:
            raise self._error(f"there is no type {name or '(none)'}{nearest(kind, SCALARS)},")
        if kind in _TOP_ONLY and not top:
            raise self._error(f"{kind} can't stand inside array or struct,")
        return self._decimal() if kind == "decimal" else Type(kind)

    def _decimal(self) -> Type:
        self._expect("(")
        digits = self._next()
        scale, separator = "0", self._next()
        if separator == ",":
            scale, separator = self._next(), self._next()
        numbers = digits.isdecimal() and scale.isdecimal() and separator == ")"
        numbers = numbers and len(digits + scale) <= 2 * len(str(_DECIMAL_DIGITS_MAX))
        if not numbers or not int(scale) <= int(digits) <= _DECIMAL_DIGITS_MAX or digits == "0":
            raise self._error(
                f"decimal takes up to {_DECIMAL_DIGITS_MAX} digits, such as decimal(10, 2),"
            )
        return Type(f"decimal({int(digits)},{int(scale)})")

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self._error(f"{found or 'the end'!r} is not {token!r},")
