"""How many seeds and Hypothesis examples a test runs with: its own number, or the environment's;
and whether what a seed does depends on anything else.

`LAKEMQ_SEED=17` runs seed 17 alone, `LAKEMQ_SEEDS=2000` that many, from `LAKEMQ_FIRST_SEED` on.
`LAKEMQ_EXAMPLES=20` is the most examples that Hypothesis tries in one test.
"""

from __future__ import annotations

import os
import subprocess
import sys

COUNT = "LAKEMQ_SEEDS"
FIRST = "LAKEMQ_FIRST_SEED"
ONLY = "LAKEMQ_SEED"
EXAMPLES = "LAKEMQ_EXAMPLES"


def seeds(count: int, *, divisor: int = 1) -> range:
    """`count` seeds unless the environment says otherwise; a `divisor` makes them fewer, but never
    none, for tests that take longer than their neighbours."""
    only = os.environ.get(ONLY)
    if only is not None:
        return range(int(only), int(only) + 1)
    first = int(os.environ.get(FIRST, "0"))
    return range(first, first + max(1, int(os.environ.get(COUNT, count)) // divisor))


def chunks(found: range, size: int) -> list[range]:
    """The same seeds in pieces, each for one test."""
    starts = range(found.start, found.stop, size)
    return [range(start, min(start + size, found.stop)) for start in starts]


def outcomes_of(script: str) -> set[bytes]:
    """What a script prints in processes with different hash order: one outcome, where it does not
    matter. Else a failing seed could not be looked into."""
    return {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            capture_output=True,
            check=True,
        ).stdout
        for number in range(3)
    }


def examples(count: int) -> int:
    """`count` examples, or as many as the environment allows."""
    return min(count, int(os.environ.get(EXAMPLES, count)))
