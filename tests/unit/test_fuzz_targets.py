"""Goal: no input breaks a decoder: not the ones that fuzzing ever kept (`tests/fuzz/fuzz.py` finds
them), and not the seeds with a few changes.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.fuzz import kept_inputs
from tests.fuzz.mutation import mutations
from tests.fuzz.registry import SlowInput, Target, limited, targets
from tests.support.seeds import seeds

pytest.importorskip("pyarrow", reason="the targets of spark_plugin need lakemq[spark]")

TARGETS = targets()
ROUNDS = 200 * int(os.environ.get("LAKEMQ_FUZZ_TIMES", "1"))
FIRST = seeds(1).start


@pytest.mark.parametrize("name", TARGETS)
def test_kept_and_changed_inputs(name: str) -> None:
    target = TARGETS[name]
    seeds = [*target.seeds, *kept_inputs(name).values()]
    changed = mutations(seeds, max(20, ROUNDS // target.weight), FIRST, target.bytes_max)
    for data in (*seeds, *changed):
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"{name} breaks on {data[:200].hex()}, seed {FIRST}") from error


@pytest.mark.parametrize("name", ["mqtt.codec", "mqtt.connection", "mqtt.proxy"])
def test_what_was_found_is_kept(name: str) -> None:
    assert len(kept_inputs(name)) >= 10


def test_an_input_that_takes_long_for_its_size_fails() -> None:
    def slow(data: bytes) -> None:
        sum(range(5_000_000))

    with pytest.raises(SlowInput, match="3 bytes take"):
        limited(Target("slow", slow, (), 10, 1))(b"abc")


def test_mutations_are_the_same_for_the_same_seed() -> None:
    made = [list(mutations([b"abc", b"defg"], 50, seed, 100)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert max(map(len, made[0])) <= 100
