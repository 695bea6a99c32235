"""Which table an export writes: format, path or name, and the tables beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from lakemq.spark_plugin.errors import OptionError

TableFormat = Literal["delta", "iceberg", "parquet"]
ROUTE_PLACEHOLDER: Final = "{route}"
"""Stands for the name of the route in paths and table names."""
LEDGER: Final = "_routes"
DEAD_LETTERS: Final = "_dead_letters"


@dataclass(frozen=True)
class Target:
    """The table that an export writes; with `{route}` in its name, one for each route."""

    format: TableFormat
    path: str = ""
    """Folder or URI (Delta, Parquet)."""
    table: str = ""
    """`namespace.table` (Iceberg)."""
    catalog: dict[str, str] = field(default_factory=dict)
    """Properties of the Iceberg catalog, such as `uri` and `warehouse`; `name` is its name."""
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store, such as `endpoint`, `region`, `secret_access_key`."""

    def __post_init__(self) -> None:
        if self.format == "iceberg":
            if not self.table or "." not in self.table:
                raise OptionError("--to iceberg needs --table namespace.table")
            if self.path:
                raise OptionError("--to iceberg takes --table, not --path")
        elif not self.path:
            raise OptionError(f"--to {self.format} needs --path")
        elif self.table:
            raise OptionError(f"--to {self.format} takes --path, not --table")

    @property
    def is_routed(self) -> bool:
        """Whether this names one table for each route."""
        return ROUTE_PLACEHOLDER in (self.table or self.path)

    def of_route(self, route: str) -> Target:
        """The table of one route."""
        if self.format == "iceberg":
            return replace(self, table=self.table.replace(ROUTE_PLACEHOLDER, route))
        return replace(self, path=self.path.replace(ROUTE_PLACEHOLDER, route))

    def dead_letters(self, given: str) -> Target:
        """The dead-letter table: the one that the user named, or one beside the table."""
        if self.is_routed and not given:
            return self.of_route(DEAD_LETTERS)
        if self.format == "iceberg":
            return replace(self, table=given or f"{self.table}_dlq")
        return replace(self, path=given or f"{self.path.rstrip('/')}_dlq")
