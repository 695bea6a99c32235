"""How much work and memory a few bytes of a value can cost under an Avro schema.

A schema that holds itself takes values of any depth. What takes no bytes (`null`, `fixed` of size
0, a record of such fields) has no bound as the item of an array, and records of it that hold each
other several times double with each level: Avro 1.12, "Binary encoding".
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

FREE_STEPS_MAX: Final = 10_000
"""Values that take no bytes of their own, within one record."""


class _Cost(NamedTuple):
    takes_bytes: bool
    free_steps: int
    """Values within that take no bytes."""


_PAID: Final = _Cost(True, 0)
_FREE: Final = _Cost(False, 1)


class AvroShape:
    """Looks through a schema as fastavro parsed it: names are full names. RecursionError for one
    that is nested too deep."""

    def __init__(self, schema: Any) -> None:
        self.is_recursive = False
        self.is_boundless = False
        """A value of a few bytes may take any time and memory."""
        self._named: dict[str, _Cost] = {}
        self._open: set[str] = set()
        self._visit(schema)

    def _visit(self, schema: Any) -> _Cost:
        if isinstance(schema, list):
            for branch in schema:
                self._visit(branch)
            return _PAID
        if isinstance(schema, str):
            return self._visit_name(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._visit_record(schema)
        if kind == "fixed":
            cost = self._named[schema["name"]] = _PAID if schema["size"] else _FREE
            return cost
        if kind == "array":
            self.is_boundless |= not self._visit(schema["items"]).takes_bytes
            return _PAID
        if kind == "map":  # each entry has a key, which takes a byte
            self._visit(schema["values"])
            return _PAID
        return _PAID if kind == "enum" else self._visit(kind)

    def _visit_name(self, name: str) -> _Cost:
        # The record is met within itself: Avro allows that, and its depth is that of the value.
        if name in self._open:
            self.is_recursive = True
            return _PAID
        return self._named.get(name, _FREE if name == "null" else _PAID)

    def _visit_record(self, schema: Any) -> _Cost:
        name = schema["name"]
        self._open.add(name)
        costs = [self._visit(field["type"]) for field in schema["fields"]]
        self._open.discard(name)
        takes_bytes = any(cost.takes_bytes for cost in costs)
        free_steps = sum(cost.free_steps for cost in costs) + (not takes_bytes)
        self.is_boundless |= free_steps > FREE_STEPS_MAX
        self._named[name] = _Cost(takes_bytes, min(free_steps, FREE_STEPS_MAX + 1))
        return self._named[name]
