"""MQTT topic names of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER: Final = "mqtt.topic"
"""Has the name where a binding has the client id for its key (`docs/mqtt.md`)."""


def topic_names(batch: pa.RecordBatch) -> pa.Array:
    """The name that each record was published under (binary): its key, or what its header says."""
    import pyarrow as pa
    from pyarrow import compute

    keys, headers = batch.column("key"), batch.column("headers")
    cells = headers.flatten()
    there = compute.equal(cells.field("key"), _HEADER)
    if not compute.any(there).as_py():
        return keys
    names = keys.to_pylist()
    rows = compute.list_parent_indices(headers).filter(there).to_pylist()
    for row, name in zip(rows, cells.field("value").filter(there).to_pylist(), strict=True):
        names[row] = name
    return pa.array(names, pa.binary())
