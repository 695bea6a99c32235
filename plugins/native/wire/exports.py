"""What an export tells the broker of its progress: offsets that it committed to a table, as those
of the group `export.ID`, which has no members, and a text beside them.

Nothing is read from there: the table alone says where an export goes on. The group is for who
watches; the broker forgets it like any other, some days after its last commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

GROUP_PREFIX: Final = "export."
_TABLE_LENGTH_MAX: Final = 500
"""Characters; with six bytes for each there is room for the rest."""
_FORMATS: Final = ("delta", "iceberg", "parquet")
_NUMBER_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The last commit of an export of one topic."""

    table: str
    """Path, URI or name."""
    format: str
    """`delta`, `iceberg` or `parquet`."""
    commit: int
    """Of this export to this table, counted from 1."""
    rows: int
    dead_letters: int
    size_bytes: int
    """Of the files that the commit added."""
    took_ms: int
    """From its begin to its end."""

    def to_text(self) -> str:
        """JSON, small enough to go with a committed offset."""
        # Names of files may hold what is not UTF-8.
        table = self.table[:_TABLE_LENGTH_MAX].encode(errors="replace").decode()
        return json.dumps({**asdict(self), "table": table}, ensure_ascii=False)

    @classmethod
    def of_text(cls, text: str) -> ExportReport | None:
        """None: it is not such a text. Anybody who may use the group can write any other."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or not _fits(found):
            return None
        return cls(**{name: found[name] for name in cls.__slots__})


def export_group(export_id: str) -> str:
    """The group of an export."""
    return f"{GROUP_PREFIX}{export_id}"


def _fits(found: Mapping[str, Any]) -> bool:
    table = found.get("table")
    return (
        isinstance(table, str)
        and len(table) <= _TABLE_LENGTH_MAX
        # JSON may hold half a surrogate pair, which no answer can.
        and not any("\ud800" <= each <= "\udfff" for each in table)
        and found.get("format") in _FORMATS
        and all(
            type(found.get(name)) is int and 0 <= found[name] <= _NUMBER_MAX
            for name in ("commit", "rows", "dead_letters", "size_bytes", "took_ms")
        )
    )
