"""What two versions of a plugin make of one record, and how that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Columns

KINDS: Final = ("same", "changed", "refused", "accepted", "raised")
"""`refused`: by the new version alone. `accepted`: the new version stores it, the old one does not.
`raised`: the new version fails, the old one does not. `changed`: both store it, not the same, or
refuse it in other words."""
_TEXT_MAX: Final = 120
_BEFORE: Final = 30
"""Characters that are shown before the first that differs, of a long text."""


class Stored(NamedTuple):
    """A record that is stored so."""

    value: bytes | None
    key: bytes | None
    headers: bytes
    timestamp_ms: int


class Refused(NamedTuple):
    """A record that is not stored."""

    kind: str
    """`refused`, or `raised`: the interceptor failed."""
    reason: str


Outcome = Stored | Refused


def outcomes_of(pieces: Sequence[Sequence[Any]], stored: Columns) -> list[Outcome]:
    """One a record. `pieces`: (how many records, `stored` or a kind of `Refused`, reason) in their
    order; `stored`: full columns of those that are."""
    columns: list[Sequence[Any]] = [column or () for column in stored]
    rows = zip(*columns, strict=True)
    found: list[Outcome] = []
    for count, kind, reason in pieces:
        if kind == "stored":
            found += [Stored(*next(rows)) for _ in range(count)]
        else:
            found += [Refused(kind, reason)] * count
    return found


def kind_of(before: Outcome, after: Outcome) -> str:
    """One of `KINDS`."""
    if before == after:
        return "same"
    if isinstance(after, Refused):
        was = before.kind if isinstance(before, Refused) else "stored"
        return "changed" if was == after.kind else after.kind
    return "accepted" if isinstance(before, Refused) else "changed"


def fields_of(outcome: Outcome) -> dict[str, object]:
    """For people and JSON; bytes that are no UTF-8 text are \\xNN."""
    if isinstance(outcome, Refused):
        return {outcome.kind: outcome.reason}
    headers = [[name, _text(value)] for name, value in decode_headers(outcome.headers)]
    return {
        "value": _text(outcome.value),
        "key": _text(outcome.key),
        "headers": headers,
        "timestamp_ms": outcome.timestamp_ms,
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def differing(before: Outcome, after: Outcome) -> tuple[dict[str, object], dict[str, object]]:
    """The fields that differ: (before, after)."""
    old, new = fields_of(before), fields_of(after)
    return (
        {name: value for name, value in old.items() if name not in new or new[name] != value},
        {name: value for name, value in new.items() if name not in old or old[name] != value},
    )


def lines_of(before: Outcome, after: Outcome) -> Iterator[str]:
    """A difference as lines with `-` and `+`; of long values the part where they differ."""
    old, new = differing(before, after)
    for sign, fields, others in (("-", old, new), ("+", new, old)):
        for name, value in fields.items():
            yield f"  {sign} {name}: {_part(_shown(value), _shown(others.get(name)))}"


def _shown(value: object) -> str:
    text = "none" if value is None else str(value)
    # One line, and nothing that a terminal would obey.
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _part(text: str, other: str) -> str:
    if len(text) <= _TEXT_MAX:
        return text
    same = next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    first = max(0, min(same - _BEFORE, len(text) - _TEXT_MAX))
    last = first + _TEXT_MAX
    return f"{'...' * (first > 0)}{text[first:last]}{'...' * (last < len(text))}"
