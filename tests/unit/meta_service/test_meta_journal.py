"""Manifests of tiered segments in the pure catalog, against a model."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meta_service.api.errors import InvalidArgument
from meta_service.catalog.command_codec import Command, encode_command
from meta_service.catalog.commands import CreateTopic, DeleteTopic, RegisterNode, SetFeatureLevel
from meta_service.catalog.control_commands import ElectLeaders, SetNodeState
from meta_service.catalog.journal import (
    GARBAGE_PREFIX,
    OBJECT_PREFIX,
    SEGMENT_PREFIX,
    TIER_PREFIX,
    BeginUpload,
    ChangeManifest,
    CollectTopic,
    DropGarbage,
    decode_segment,
    decode_tier,
    tier_key,
)
from meta_service.catalog.results import Result
from meta_service.catalog.tables import KEYS
from tests.support.seeds import examples
from tests.unit.meta_service.meta_catalog_rig import Catalog

TOPIC_ID = "a" * 32
WHO = ("t", TOPIC_ID, 0, "n1", 0)


def ready() -> Catalog:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(2))
    for name in ("n1", "n2"):
        catalog.do(RegisterNode(name, {}, "", "1", 1, False))
    catalog.do(CreateTopic("t", TOPIC_ID, 1, 2, {}))
    return catalog


def upload(catalog: Catalog, location: str) -> str:
    return catalog.do(BeginUpload(*WHO, location)).result.code


def segment(base: int, end: int, location: str) -> tuple[int, int, int, str, bytes, int]:
    return (base, end, (end - base) * 10, location, b"sum", 5)


def change(
    catalog: Catalog,
    put: tuple[Any, ...] = (),
    remove: tuple[int, ...] = (),
    start: int | None = None,
    abandon: tuple[str, ...] = (),
    expected: int | None = None,
) -> Result:
    return catalog.do(ChangeManifest(*WHO, put, remove, start, abandon, expected)).result


def rows(catalog: Catalog, prefix: bytes) -> dict[bytes, bytes]:
    return {key[1:]: data[32:] for key, data in catalog.store.scan(KEYS + prefix)}


def garbage(catalog: Catalog) -> list[str]:
    return [key[len(GARBAGE_PREFIX) :].decode() for key in rows(catalog, GARBAGE_PREFIX)]


def test_segments_are_announced_named_replaced_and_cut() -> None:
    catalog = ready()
    for location in ("a", "b", "ab"):
        assert upload(catalog, location) == ""
    first = change(catalog, (segment(5, 10, "a"), segment(10, 20, "b")))
    assert first.payload == [5, 20, 150]
    assert change(catalog, (segment(5, 20, "ab"),), (5, 10)).payload == [5, 20, 150]
    assert garbage(catalog) == ["a", "b"]
    assert change(catalog, remove=(5,), start=20).payload == [20, 20, 0]
    assert garbage(catalog) == ["a", "ab", "b"]
    assert catalog.do(DropGarbage(("a", "zzz"))).result.payload == 1
    assert garbage(catalog) == ["ab", "b"]


@pytest.mark.parametrize(
    ("put", "remove", "start", "says"),
    [
        ((segment(31, 40, "x"),), (), None, "must go on at offset 30 without gap"),
        ((segment(30, 40, "x"), segment(39, 50, "y")), (), None, "two segments hold offset 39"),
        ((segment(10, 19, "x"),), (10,), None, "very offsets"),
        ((segment(10, 20, "x"),), (), None, "very offsets"),
        ((), (20,), None, "very offsets"),
        ((), (), 10, "segments below it"),
        ((), (0,), 15, "segments below it"),
        ((), (0,), 99, "from 0 to 30"),
        ((), (0, 0), 10, "twice"),
    ],
)
def test_a_manifest_never_gets_a_gap_or_an_overlap(
    put: tuple[Any, ...], remove: tuple[int, ...], start: int | None, says: str
) -> None:
    catalog = ready()
    for location in ("a", "b", "c", "x", "y"):
        upload(catalog, location)
    change(catalog, (segment(0, 10, "a"), segment(10, 20, "b"), segment(20, 30, "c")))
    before = rows(catalog, b"\0journal/")
    refused = change(catalog, put, remove, start)
    assert refused.code == "INVALID_ARGUMENT"
    assert says in refused.payload
    assert rows(catalog, b"\0journal/") == before


def test_objects_are_announced_once_and_before_they_are_named() -> None:
    catalog = ready()
    assert change(catalog, (segment(0, 1, "a"),)).code == "NOT_FOUND"
    upload(catalog, "a")
    assert upload(catalog, "a") == "ALREADY_EXISTS"
    change(catalog, (segment(0, 1, "a"),))
    assert upload(catalog, "a") == "ALREADY_EXISTS"
    assert change(catalog, abandon=("a",)).code == "NOT_FOUND", "it is in the manifest"
    assert change(catalog, (segment(1, 2, "a"),)).code == "NOT_FOUND", "for another segment"
    upload(catalog, "b")
    assert not change(catalog, abandon=("b",)).code
    assert garbage(catalog) == ["b"]
    assert upload(catalog, "b") == "ALREADY_EXISTS", "it may be deleted any moment"


def test_only_the_leader_in_its_epoch_changes_a_manifest() -> None:
    catalog = ready()
    catalog.do(SetNodeState("n1", 1, "fenced"))
    catalog.do(ElectLeaders(("t",), False))
    assert upload(catalog, "a") == "COMPARE_FAILED"
    assert change(catalog, abandon=("a",)).code == "COMPARE_FAILED"
    new = BeginUpload("t", TOPIC_ID, 0, "n2", 1, "a")
    assert not catalog.do(new).result.code
    stranger = BeginUpload("t", "b" * 32, 0, "n2", 1, "a")
    assert catalog.do(stranger).result.code == "NOT_FOUND"


def test_a_compare_on_the_manifest_decides() -> None:
    catalog = ready()
    upload(catalog, "a")
    upload(catalog, "b")
    first = change(catalog, (segment(0, 1, "a"),), expected=0)
    assert not first.code
    assert change(catalog, (segment(1, 2, "b"),), expected=0).code == "COMPARE_FAILED"
    assert not change(catalog, (segment(1, 2, "b"),), expected=first.revision).code


def test_all_objects_of_a_deleted_topic_become_garbage() -> None:
    catalog = ready()
    for location in ("a", "b"):
        upload(catalog, location)
    change(catalog, (segment(0, 1, "a"),))
    catalog.do(DeleteTopic("t"))
    keys = tuple(key for key in rows(catalog, b"\0journal/"))
    assert catalog.do(CollectTopic("b" * 32, keys)).result.code == "INVALID_ARGUMENT"
    assert catalog.do(CollectTopic(TOPIC_ID, (b"\0topic/t",))).result.code == "INVALID_ARGUMENT"
    assert catalog.do(CollectTopic(TOPIC_ID, keys[:2])).result.payload == 2
    assert catalog.do(CollectTopic(TOPIC_ID, keys)).result.payload == len(keys) - 2
    assert garbage(catalog) == ["a", "b"]
    assert list(rows(catalog, b"\0journal/")) == [GARBAGE_PREFIX + b"a", GARBAGE_PREFIX + b"b"]


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (BeginUpload(*WHO, ""), "location"),
        (BeginUpload("t", "x", 0, "n", 0, "a"), "topic_id"),
        (ChangeManifest(*WHO, (segment(5, 5, "a"),), (), None, (), None), "put.end_offset"),
        (ChangeManifest(*WHO, (), (-1,), None, (), None), "remove"),
        (ChangeManifest(*WHO, (), (1,) * 501, None, (), None), "at most 500"),
        (ChangeManifest(*WHO, (), (), -1, (), None), "start_offset"),
        (ChangeManifest(*WHO, (), (), None, (), -1), "expected_revision"),
        (DropGarbage(("a",) * 501), "locations"),
    ],
)
def test_bad_fields_are_named(command: Command, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        encode_command(command)


class ManifestModel(RuleBasedStateMachine):
    """Whatever is asked: the manifest stays whole, and every object is known exactly once."""

    @initialize()
    def begin(self) -> None:
        self.catalog = ready()
        self.announced: set[str] = set()
        self.named: set[str] = set()
        self.thrown: set[str] = set()
        self.names = (f"o{number}" for number in itertools.count())

    def _new(self) -> str:
        name = next(self.names)
        assert upload(self.catalog, name) == ""
        self.announced.add(name)
        return name

    def segments(self) -> list[Any]:
        found = rows(self.catalog, SEGMENT_PREFIX).items()
        return [decode_segment(key, value) for key, value in found]

    @rule(size=st.integers(1, 5), gap=st.sampled_from([0, 0, 0, 1]))
    def append(self, size: int, gap: int) -> None:
        name = self._new()
        value = self.catalog.value(tier_key(TOPIC_ID, 0))
        end = decode_tier(value).end_offset + gap if value is not None else 7
        told = change(self.catalog, (segment(end, end + size, name),))
        assert bool(told.code) is bool(gap and value is not None)
        self._move({name} if not told.code else set(), set())

    @precondition(lambda self: len(self.segments()) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        have = self.segments()
        first = data.draw(st.integers(0, len(have) - 2))
        last = data.draw(st.integers(first + 1, len(have) - 1))
        short = data.draw(st.integers(0, 1))
        name, old = self._new(), have[first : last + 1]
        new = segment(old[0].base_offset, old[-1].end_offset - short, name)
        told = change(self.catalog, (new,), tuple(each.base_offset for each in old))
        assert bool(told.code) is bool(short)
        if not told.code:
            self._move({name}, {each.location for each in old})

    @precondition(lambda self: bool(self.segments()))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        have = self.segments()
        count = data.draw(st.integers(1, len(have)))
        start = have[count - 1].end_offset
        told = change(self.catalog, (), tuple(s.base_offset for s in have[:count]), start)
        assert not told.code
        self._move(set(), {each.location for each in have[:count]})

    @precondition(lambda self: bool(self.announced))
    @rule()
    def abandon(self) -> None:
        name = min(self.announced)
        assert not change(self.catalog, abandon=(name,)).code
        self.announced.discard(name)
        self.thrown.add(name)

    @rule()
    def sweep(self) -> None:
        some = tuple(sorted(self.thrown)[:2])
        assert self.catalog.do(DropGarbage(some)).result.payload == len(some)
        self.thrown -= set(some)

    def _move(self, named: set[str], thrown: set[str]) -> None:
        self.announced -= named
        self.named = (self.named | named) - thrown
        self.thrown |= thrown

    @invariant()
    def is_whole(self) -> None:
        have = self.segments()
        for before, behind in itertools.pairwise(have):
            assert before.end_offset == behind.base_offset
        for value in rows(self.catalog, TIER_PREFIX).values():
            tier = decode_tier(value)
            assert tier.size_bytes == sum(each.size_bytes for each in have)
            if have:
                assert tier[:2] == (have[0].base_offset, have[-1].end_offset)
        assert {each.location for each in have} == self.named
        assert set(garbage(self.catalog)) == self.thrown
        objects = {key[len(OBJECT_PREFIX) + 20 :] for key in rows(self.catalog, OBJECT_PREFIX)}
        assert objects == {name.encode() for name in self.announced | self.named}


TestManifestModel = ManifestModel.TestCase
TestManifestModel.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
