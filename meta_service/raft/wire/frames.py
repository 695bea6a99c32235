"""What members say to each other as frames: a length (4 bytes, the highest first), then as many
bytes. The first frame of each side says who it is; of a callee it may be a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgpack

from lakemq.meta_service.raft.wire_format import INDEX_MAX, BadMessage

HELLO_MAX_BYTES: Final = 4 * 1024
"""Of the first frame, which comes before the caller is known."""
WIRE_VERSION: Final = 1
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Hello:
    """What a member says of itself when it connects, either way."""

    member_id: str
    api_address: str
    """Where its clients reach it."""
    cluster_id: str
    """Empty while it has none."""
    feature_level: int
    """Highest feature level that its code knows."""


class Refusal(Exception):
    """The callee does not take this caller."""

    def __init__(self, reason: str, *, is_unknown: bool = False) -> None:
        """`is_unknown`: the caller is no member, or not any more."""
        super().__init__(reason)
        self.is_unknown = is_unknown


def frame(data: bytes) -> bytes:
    """The bytes behind their length."""
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class FrameReader:
    """Puts together what arrives; a frame's length is checked before any of it is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """The frames that are complete with these bytes. Raises BadMessage."""
        self._data += data
        found: list[bytes] = []
        at = 0
        while len(self._data) >= at + _LENGTH_BYTES:
            begin = at + _LENGTH_BYTES
            size = int.from_bytes(self._data[at:begin], "big")
            if size > self._max_bytes:
                raise BadMessage(f"a frame of {size} bytes")
            if len(self._data) < begin + size:
                break
            at = begin + size
            found.append(bytes(self._data[begin:at]))
        del self._data[:at]
        return found

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing of a frame has come yet."""
        return not self._data


def encode_hello(hello: Hello) -> bytes:
    """The first frame of a side."""
    return _pack(
        {
            "wire": WIRE_VERSION,
            "member": hello.member_id,
            "address": hello.api_address,
            "cluster": hello.cluster_id,
            "level": hello.feature_level,
        }
    )


def encode_refusal(refusal: Refusal) -> bytes:
    """The callee's only frame to a caller that it does not take."""
    return _pack({"refused": str(refusal)[:1024], "unknown": refusal.is_unknown})


def decode_hello(data: bytes) -> Hello:
    """Raises Refusal, where it is one, and BadMessage. Keys that are not known are passed over."""
    try:
        fields = msgpack.unpackb(data, use_list=False, raw=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise BadMessage(f"not MessagePack: {error}") from error
    if not isinstance(fields, dict):
        raise BadMessage("not a map")
    if "refused" in fields:
        raise Refusal(str(fields["refused"]), is_unknown=fields.get("unknown") is True)
    if fields.get("wire") != WIRE_VERSION:
        raise Refusal(f"version {fields.get('wire')!r} of the wire is not {WIRE_VERSION}")
    level = fields.get("level")
    if not isinstance(level, int) or isinstance(level, bool) or not 1 <= level <= INDEX_MAX:
        raise BadMessage("a hello without a level")
    return Hello(_text(fields, "member"), _text(fields, "address"), _text(fields, "cluster"), level)


def _text(fields: dict[Any, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise BadMessage(f"a hello without {key}")
    return value


def _pack(fields: dict[str, Any]) -> bytes:
    data: bytes = msgpack.packb(fields, use_bin_type=True)
    return frame(data)
