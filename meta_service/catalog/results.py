"""Results of commands: what every member computes alike and the leader answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from lakemq.meta_service.api.errors import BY_CODE, Compacted, MetaError
from lakemq.meta_service.catalog.tables import pack, unpack


class Result(NamedTuple):
    """Outcome of a command. `code` is empty on success, else that of a `MetaError`."""

    code: str
    revision: int
    payload: Any
    """The command's answer on success, the message on failure."""


def encode_result(result: Result) -> bytes:
    """The result as it is stored for a retry."""
    return pack(tuple(result))


def decode_result(data: bytes) -> Result:
    """The result from the bytes that `encode_result` made."""
    return Result(*unpack(data))


def value_of(result: Result) -> Any:
    """The payload. Raises the `MetaError` that the code stands for."""
    if not result.code:
        return result.payload
    raise error_of(result.code, str(result.payload), result.revision)


def error_of(code: str, message: str, revision: int = 0) -> MetaError:
    """The `MetaError` of a code; a code of newer members becomes a plain `MetaError`."""
    kind = BY_CODE.get(code, MetaError)
    if issubclass(kind, Compacted):
        return kind(message, revision)
    return kind(message)
