"""What a node says of its interest <-> bytes (`docs/formats/peer.md`). BadSnapshot is all that
bytes of another node can cause."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Final, NamedTuple

import msgpack

from lakemq.plugins.mqtt.interest.hashes import packed, unpacked_hashes
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot, binary, flag, items, number, text
from lakemq.plugins.mqtt.wire.primitives import STRING_MAX_BYTES

HASHES_MAX: Final = 65_536
"""Of one message."""
TEXTS_MAX: Final = 4096
GROUPS_MAX: Final = 4096
COUNT_MAX: Final = 2**31 - 1
MESSAGE_MAX_BYTES: Final = 4 * 1024 * 1024
TARGET_BYTES: Final = 1024 * 1024
"""Filters of one message at most, about; hashes beside them."""


class Kind(IntEnum):
    """How a message changes what was said before."""

    WHOLE = 1
    """Forget it."""
    MORE = 2
    """It goes on with a whole one."""
    DELTA = 3


class Members(NamedTuple):
    """How many members a shared group has on one node."""

    connected: int
    others: int
    """Whose sessions are kept."""


class Said(NamedTuple):
    """One message."""

    kind: Kind
    number: int
    """Of the interest that it completes; the one before it for a part that is not the last."""
    complete: bool
    added: array[int]
    """Hashes of filters without wildcards, in rising order."""
    removed: array[int]
    texts_added: list[str]
    """Filters with wildcards."""
    texts_removed: list[str]
    groups: list[tuple[str, str, Members]]
    """Share name, filter, members; none of either: the group is gone."""
    everything: bool
    """The filters are too many to tell: whatever there is may be wanted."""


def nothing(kind: Kind, number: int) -> Said:
    """A message that changes nothing but the number."""
    return Said(kind, number, True, array("Q"), array("Q"), [], [], [], False)


def encode(said: Said) -> bytes:
    """`decode` reads it."""
    groups = [[name, where, *members] for name, where, members in said.groups]
    return bytes(
        msgpack.packb(
            [
                int(said.kind), said.number, said.complete, packed(said.added),
                packed(said.removed), said.texts_added, said.texts_removed, groups,
                said.everything,
            ]
        )
    )  # fmt: skip


def decode(data: bytes) -> Said:
    """Raises BadSnapshot."""
    if len(data) > MESSAGE_MAX_BYTES:
        raise BadSnapshot(f"interest of {len(data)} bytes")
    try:
        found = msgpack.unpackb(
            data, max_array_len=max(TEXTS_MAX, GROUPS_MAX), max_map_len=0, max_ext_len=0,
            max_bin_len=8 * HASHES_MAX, max_str_len=STRING_MAX_BYTES, strict_map_key=True,
        )  # fmt: skip
        kind, count, complete, added, removed, texts, gone, groups, everything = items(found, 9)
        return Said(
            Kind(number(kind, min(Kind), max(Kind))),
            number(count),
            flag(complete),
            _hashes(added),
            _hashes(removed),
            [text(each) for each in items(texts)],
            [text(each) for each in items(gone)],
            [_group(each) for each in items(groups)],
            flag(everything),
        )
    except BadSnapshot:
        raise
    # All that msgpack raises for bytes that are none of its own, and what unpacking does.
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadSnapshot(f"interest can't be read: {error}") from None


def _hashes(value: object) -> array[int]:
    found = unpacked_hashes(binary(value))
    if found is None:
        raise BadSnapshot("hashes have 8 bytes each")
    return found


def _group(value: object) -> tuple[str, str, Members]:
    name, topic_filter, connected, others = items(value, 4)
    members = Members(number(connected, 0, COUNT_MAX), number(others, 0, COUNT_MAX))
    return text(name), text(topic_filter), members
