"""Is a history of calls on one register linearizable? (Wing and Gong, with Lowe's memory.)

A register holds a value. Calls: `read`, `write` and compare-and-set. A call whose answer never came
may have happened at any later time or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NEVER = float("inf")


@dataclass
class Call:
    """One call as its client saw it. `result` is None when no answer came."""

    kind: str
    """`read`, `write` or `cas`."""
    argument: Any
    """Nothing; the value; (expected, new)."""
    begin: float
    end: float = NEVER
    result: Any = None
    """The value read; True; whether it was set."""


def _step(call: Call, value: Any) -> tuple[bool, Any]:
    """(the result fits, value behind the call)."""
    known = call.end != NEVER
    if call.kind == "read":
        return (not known or call.result == value), value
    if call.kind == "write":
        return True, call.argument
    expected, new = call.argument
    done = expected == value
    if known and done != call.result:
        return False, value
    return True, new if done else value


def is_linearizable(calls: Sequence[Call], initial: Any = None) -> bool:
    calls = sorted(
        (call for call in calls if call.end != NEVER or call.kind != "read"),
        key=lambda call: call.begin,
    )
    must = sum(1 << n for n, call in enumerate(calls) if call.end != NEVER)
    seen: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [(0, initial)]
    while stack:
        done, value = stack.pop()
        if done & must == must:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        # A call may come next if no other call ended before it began.
        first_end = min(
            (call.end for n, call in enumerate(calls) if not done >> n & 1), default=NEVER
        )
        for n, call in enumerate(calls):
            if call.begin > first_end:
                break
            if done >> n & 1:
                continue
            fits, after = _step(call, value)
            if fits:
                stack.append((done | 1 << n, after))
    return False
