"""What nodes say to each other about sessions, and records of `__mqtt_homes` <-> bytes.

`docs/formats/mqtt.md` lists them. Everything is checked as it is read; BadSnapshot is all that
bytes of another node can cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgpack

from lakemq.plugins.mqtt.homes.table import Claim, Known, Owned, Owner, User, Why
from lakemq.plugins.mqtt.state.stored_values import (
    U32_MAX,
    VERSION,
    BadSnapshot,
    any_text,
    binary,
    flag,
    items,
    number,
    text,
    unpacked,
)

MESSAGE_BYTES: Final = 1024 * 1024
"""About how large a message becomes: longer lists are cut, a state alone may be larger."""
ROWS_MAX: Final = 4096
"""Most sessions that one message is about."""
PAGES_MAX: Final = 65_536
_Row = TypeVar("_Row")


class Kind(IntEnum):
    """What a request asks for: the first byte of it."""

    CLAIM = 1
    LET_GO = 2
    SAVE = 3
    OWNED = 4
    KNOWN = 5
    ANNOUNCE = 6
    OFFER = 7


class Code(IntEnum):
    """What became of one row of a request."""

    DONE = 0
    STALE = 1
    """The node does not own the session (any more)."""
    FAILED = 2
    """Not stored, or not led here: to be tried again."""
    ANOTHERS = 3
    FULL = 4
    SUPERSEDED = 5


REFUSALS: Final = {
    Why.ANOTHERS: Code.ANOTHERS,
    Why.FULL: Code.FULL,
    Why.SUPERSEDED: Code.SUPERSEDED,
}


class Outcome(NamedTuple):
    """Of a claim."""

    code: Code
    epoch: int = 0
    kept: bool = False
    """The topic has a record of the session."""
    here: bool = False
    """The claimant had the session already, and has it in memory."""
    state: bytes | None = None
    unclean: bool = False
    """The state is what was kept: its owner could not hand it over."""


class Asked(NamedTuple):
    """A session to let go of."""

    client_id: str
    epoch: int
    ends: bool


class Saved(NamedTuple):
    """A session as its owner wants it kept."""

    client_id: str
    epoch: int
    number: int
    """Grows with each write of the node."""
    state: bytes | None
    """None: it is not kept."""
    alive: bool
    """False: it has ended."""
    urgent: bool


class Record(NamedTuple):
    """A record of `__mqtt_homes`."""

    epoch: int
    owner: Owner
    user: User
    urgent: bool
    state: bytes


def _packed(kind: Kind | None, value: dict[str, Any]) -> bytes:
    head = bytes((kind,)) if kind is not None else b""
    return head + bytes(msgpack.packb({"v": VERSION, **value}))


def _rows(value: Any, size: int) -> list[list[Any]]:
    rows = items(value)
    if len(rows) > ROWS_MAX:
        raise BadSnapshot(f"{len(rows)} rows; {ROWS_MAX} at most")
    return [items(each, size) for each in rows]


def _map(data: bytes, *keys: str) -> list[Any]:
    value = unpacked(data)
    try:
        return [value[key] for key in keys]
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None


def split(request: bytes) -> tuple[Kind, bytes]:
    """The kind of a request, and the rest of it. Raises BadSnapshot."""
    try:
        return Kind(request[0]), request[1:]
    except (IndexError, ValueError):
        raise BadSnapshot("no request of a known kind") from None


def claims_bytes(claims: Sequence[Claim]) -> bytes:
    """Claims of the node that sends this."""
    rows = [(one.client_id, *one.user, one.clean, one.here, one.replace) for one in claims]
    return _packed(Kind.CLAIM, {"r": rows})


def read_claims(owner: Owner, data: bytes) -> list[Claim]:
    """Inverse; `owner`: whose message it is, as the connection shows."""
    (rows,) = _map(data, "r")
    return [
        Claim(
            text(name), owner, (any_text(kind), any_text(user)), flag(clean), flag(here),
            flag(replace),
        )
        for name, kind, user, clean, here, replace in _rows(rows, 6)
    ]  # fmt: skip


def outcomes_bytes(outcomes: Sequence[Outcome]) -> bytes:
    """Answer to claims, in their order."""
    return _packed(None, {"r": [tuple(one) for one in outcomes]})


def read_outcomes(data: bytes, count: int) -> list[Outcome]:
    """Inverse, of `count` claims."""
    (rows,) = _map(data, "r")
    found = [
        Outcome(
            _code(code), number(epoch), flag(kept), flag(here),
            None if state is None else binary(state), flag(unclean),
        )
        for code, epoch, kept, here, state, unclean in _rows(rows, 6)
    ]  # fmt: skip
    return _counted(found, count)


def _code(value: Any) -> Code:
    return Code(number(value, 0, max(Code)))


def _counted(rows: list[_Row], count: int) -> list[_Row]:
    if len(rows) != count:
        raise BadSnapshot(f"{len(rows)} answers to {count} rows")
    return rows


def asks_bytes(asked: Sequence[Asked]) -> bytes:
    """Sessions that their owner is to let go of."""
    return _packed(Kind.LET_GO, {"r": [tuple(one) for one in asked]})


def read_asks(data: bytes) -> list[Asked]:
    """Inverse."""
    (rows,) = _map(data, "r")
    return [Asked(text(one), number(epoch), flag(ends)) for one, epoch, ends in _rows(rows, 3)]


def offer_bytes(sessions: Sequence[tuple[str, int]]) -> bytes:
    """Sessions (client id, epoch) that a node is to leave behind."""
    return _packed(Kind.OFFER, {"r": list(sessions)})


def read_offer(data: bytes) -> list[tuple[str, int]]:
    """Inverse."""
    (rows,) = _map(data, "r")
    return [(text(one), number(epoch)) for one, epoch in _rows(rows, 2)]


def states_bytes(states: Sequence[bytes | None]) -> bytes:
    """Answer to asks, in their order: states that are handed over."""
    return _packed(None, {"r": list(states)})


def read_states(data: bytes, count: int) -> list[bytes | None]:
    """Inverse, of `count` asks."""
    (rows,) = _map(data, "r")
    return _counted([None if one is None else binary(one) for one in items(rows)], count)


def saves_bytes(saved: Sequence[Saved]) -> bytes:
    """Sessions to be kept."""
    return _packed(Kind.SAVE, {"r": [tuple(one) for one in saved]})


def read_saves(data: bytes) -> list[Saved]:
    """Inverse."""
    (rows,) = _map(data, "r")
    return [
        Saved(
            text(one), number(epoch), number(count), None if state is None else binary(state),
            flag(alive), flag(urgent),
        )
        for one, epoch, count, state, alive, urgent in _rows(rows, 6)
    ]  # fmt: skip


def codes_bytes(codes: Sequence[Code]) -> bytes:
    """Answer to saves, in their order."""
    return _packed(None, {"r": list(map(int, codes))})


def read_codes(data: bytes, count: int) -> list[Code]:
    """Inverse, of `count` saves."""
    (rows,) = _map(data, "r")
    return _counted(list(map(_code, items(rows))), count)


def owned_request(partition: int, page: int, pages: int) -> bytes:
    """What the node owns in a partition; `pages` is 0 at first, then what the first answer says."""
    return _packed(Kind.OWNED, {"p": partition, "n": page, "of": pages})


def read_owned_request(data: bytes) -> tuple[int, int, int]:
    """Inverse."""
    partition, page, pages = _map(data, "p", "n", "of")
    return (
        number(partition, 0, U32_MAX), number(page, 0, PAGES_MAX), number(pages, 0, PAGES_MAX),
    )  # fmt: skip


def owned_bytes(pages: int, sessions: Sequence[Owned], kind: Kind | None = None) -> bytes:
    """One page of what a node owns; of `Kind.ANNOUNCE`: told without being asked."""
    rows = [(one.client_id, one.epoch, *one.user, one.urgent) for one in sessions]
    return _packed(kind, {"n": pages, "r": rows})


def read_owned(data: bytes) -> tuple[int, list[Owned]]:
    """Inverse: pages, sessions."""
    pages, rows = _map(data, "n", "r")
    found = [
        Owned(text(one), number(epoch), (any_text(kind), any_text(user)), flag(urgent))
        for one, epoch, kind, user, urgent in _rows(rows, 5)
    ]
    return number(pages, 1, PAGES_MAX), found


def known_bytes(known: Sequence[Known], kind: Kind | None = None) -> bytes:
    """What a home makes of what a node owns. Of `Kind.KNOWN`: told behind the answers to
    `Kind.OWNED`."""
    return _packed(kind, {"r": [tuple(one) for one in known]})


def read_known(data: bytes) -> list[Known]:
    """Inverse."""
    (rows,) = _map(data, "r")
    return [Known(text(one), number(told), number(epoch)) for one, told, epoch in _rows(rows, 3)]


def record_bytes(record: Record) -> bytes:
    """Value of a record of `__mqtt_homes`."""
    return _packed(
        None,
        {
            "ep": record.epoch,
            "own": list(record.owner),
            "usr": list(record.user),
            "urg": record.urgent,
            "st": record.state,
        },
    )


def read_record(data: bytes) -> Record:
    """Inverse."""
    epoch, owner, user, urgent, state = _map(data, "ep", "own", "usr", "urg", "st")
    node, life = items(owner, 2)
    kind, name = items(user, 2)
    return Record(
        number(epoch),
        Owner(any_text(node), number(life)),
        (any_text(kind), any_text(name)),
        flag(urgent),
        binary(state),
    )
