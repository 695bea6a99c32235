"""Goal: what is written as TOML is read back by Python's own parser."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.local_cluster.toml_text import merged, toml_text

# Unpaired surrogates are no text, in TOML or anywhere.
text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=8
)


@given(st.dictionaries(text, values))
def test_what_is_written_is_read_back(given_values: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(given_values)) == given_values


def test_sections_read_as_a_person_would_write_them() -> None:
    written = toml_text({"node": {"id": "n1"}, "plugins": {"mqtt": {"port": 0}}})
    assert written == '[node]\nid = "n1"\n\n[plugins.mqtt]\nport = 0\n'


def test_what_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="TOML has no NoneType"):
        toml_text({"a": None})


def test_tables_are_merged_and_the_second_holds() -> None:
    base = {"meta": {"port": 1, "host": "a"}, "topics": {"partitions": 4}, "x": 1}
    over = {"meta": {"port": 2}, "x": {"y": 1}}
    assert merged(base, over) == {
        "meta": {"port": 2, "host": "a"},
        "topics": {"partitions": 4},
        "x": {"y": 1},
    }
    assert base["meta"] == {"port": 1, "host": "a"}
