"""What `--key` names: the record's key, or columns."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.options import nearest

if TYPE_CHECKING:
    import pyarrow as pa

_RECORD_KEY: Final = "key"
_COLUMN: Final = "column:"
Key = tuple[str, ...]
"""Columns whose values together name a row; empty: the record's key does."""


def parse_key(text: str) -> Key:
    """The value of `--key`. OptionError says what is wrong."""
    names = [each.strip() for each in text.split(",")]
    if names == [_RECORD_KEY]:
        return ()
    if "" in names:
        raise OptionError(f"--key is {text!r}; it takes key (the record's key) or columns")
    columns = tuple(each.removeprefix(_COLUMN) for each in names)
    if len(set(columns)) < len(columns):
        raise OptionError(f"--key is {text!r}: a column is there twice")
    return columns


def key_mark(text: str) -> int:
    """A number that stands for `--mode upsert` with this key in a table: 60 bits, never 0."""
    key = parse_key(text)
    name = ",".join(f"{_COLUMN}{each}" for each in sorted(key)) or _RECORD_KEY
    return int(hashlib.sha256(name.encode()).hexdigest()[:15], 16) or 1


def check_key(text: str, schema: pa.Schema) -> None:
    """OptionError unless the decoded columns can be a key."""
    import pyarrow as pa

    for name in parse_key(text):
        if name not in schema.names:
            known = nearest(name, tuple(schema.names))
            raise OptionError(f"--key: --schema has no column {name}{known}")
        kind = schema.field(name).type
        plain = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_binary(kind)
        if not (plain or pa.types.is_date(kind) or pa.types.is_boolean(kind)):
            raise OptionError(
                f"--key: {name} is {kind}; a key is text, bytes, a whole number, boolean or date"
            )
