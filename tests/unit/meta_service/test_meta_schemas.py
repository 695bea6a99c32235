"""Schemas in the pure catalog, against a model of dicts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.api.schemas import COMPATIBILITIES
from lakemq.meta_service.catalog import schemas as schemas_module
from lakemq.meta_service.catalog.command_codec import Command, encode_command
from lakemq.meta_service.catalog.commands import SetFeatureLevel
from lakemq.meta_service.catalog.schemas import (
    ID_PREFIX,
    SUBJECT_PREFIX,
    DeleteSchema,
    RegisterSchema,
    SetCompatibility,
    decode_schema,
    decode_subject,
)
from tests.support.meta.catalog_rig import Catalog
from tests.support.seeds import examples


def ready() -> Catalog:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(2))
    return catalog


def register(text: str, expected: int | None = None, subject: str = "s") -> RegisterSchema:
    return RegisterSchema(subject, "avro", text, expected)


def test_versions_are_dense_and_ids_are_the_clusters() -> None:
    catalog = ready()
    told = [
        catalog.do(register(text, subject=subject)).result.payload
        for subject, text in (("a", "1"), ("b", "1"), ("a", "2"))
    ]
    assert told == [[1, 1], [1, 2], [2, 3]]


def test_the_latest_schema_again_is_no_new_version() -> None:
    catalog = ready()
    first = catalog.do(register("x", 0)).result
    again = catalog.do(register("x", 0)).result
    assert again.payload == list(first.payload)
    assert again.revision == first.revision
    assert catalog.do(RegisterSchema("s", "json-schema", "x", None)).result.payload == [2, 2]


def test_somebody_who_was_quicker_is_noticed() -> None:
    catalog = ready()
    catalog.do(register("x", 0))
    assert catalog.do(register("y", 0)).result.code == "COMPARE_FAILED"
    assert catalog.do(register("y", 1)).result.payload == [2, 2]


def test_a_deleted_version_is_not_given_again() -> None:
    catalog = ready()
    catalog.do(register("x"))
    catalog.do(register("y"))
    assert not catalog.do(DeleteSchema("s", 2)).result.code
    assert catalog.do(DeleteSchema("s", 2)).result.code == "NOT_FOUND"
    assert catalog.do(register("y", 2)).result.payload == [3, 3]


def test_a_subject_has_so_many_versions_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas_module, "VERSIONS_MAX", 2)
    catalog = ready()
    codes = [catalog.do(register(text)).result.code for text in ("1", "2", "3")]
    assert codes == ["", "", "OVERLOADED"]


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (RegisterSchema("", "avro", "x", None), "subject"),
        (RegisterSchema("s", "xml", "x", None), "schema_type"),
        (RegisterSchema("s", "avro", "", None), "text"),
        (RegisterSchema("s", "avro", "ä" * 200_000, None), "text"),
        (RegisterSchema("s", "avro", "x", -1), "expected_version"),
        (DeleteSchema("s", 0), "version"),
        (SetCompatibility("s", "maybe"), "compatibility"),
    ],
)
def test_bad_fields_are_named(command: Command, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        encode_command(command)


class SchemasModel(RuleBasedStateMachine):
    """The catalog beside plain dicts."""

    subjects = st.sampled_from(["a", "b"])
    texts = st.sampled_from(["1", "2", "3"])

    @initialize()
    def begin(self) -> None:
        self.catalog = ready()
        self.versions: dict[str, dict[int, int]] = {}
        self.latest: dict[str, int] = {}
        self.compatibility: dict[str, str | None] = {}
        self.texts_of: dict[int, str] = {}
        self.last_id = 0

    @rule(subject=subjects, text=texts, expected=st.none() | st.integers(0, 4))
    def register(self, subject: str, text: str, expected: int | None) -> None:
        result = self.catalog.do(register(text, expected, subject)).result
        versions, latest = self.versions.get(subject, {}), self.latest.get(subject, 0)
        if latest in versions and self.texts_of[versions[latest]] == text:
            assert result.payload == [latest, versions[latest]]
        elif expected not in (None, latest):
            assert result.code == "COMPARE_FAILED"
        else:
            self.last_id += 1
            assert result.payload == [latest + 1, self.last_id]
            self.versions.setdefault(subject, {})[latest + 1] = self.last_id
            self.latest[subject] = latest + 1
            self.texts_of[self.last_id] = text

    @rule(subject=subjects, version=st.none() | st.integers(1, 4))
    def delete(self, subject: str, version: int | None) -> None:
        result = self.catalog.do(DeleteSchema(subject, version)).result
        known = subject in self.latest or subject in self.compatibility
        if not known or (version is not None and version not in self.versions.get(subject, {})):
            assert result.code == "NOT_FOUND"
        elif version is not None:
            del self.texts_of[self.versions[subject].pop(version)]
        else:
            for schema_id in self.versions.pop(subject, {}).values():
                del self.texts_of[schema_id]
            self.latest.pop(subject, None)
            self.compatibility.pop(subject, None)

    @rule(subject=subjects, level=st.none() | st.sampled_from(COMPATIBILITIES))
    def set_compatibility(self, subject: str, level: str | None) -> None:
        assert not self.catalog.do(SetCompatibility(subject, level)).result.code
        self.compatibility[subject] = level

    @invariant()
    def is_alike(self) -> None:
        rows = self.catalog.store.scan(b"k" + SUBJECT_PREFIX)
        for subject in (decode_subject(key[1:], data[32:], 0) for key, data in rows):
            assert dict(subject.versions) == self.versions.get(subject.name, {})
            assert subject.latest_version == self.latest.get(subject.name, 0)
            assert subject.compatibility == self.compatibility.get(subject.name)
        rows = self.catalog.store.scan(b"k" + ID_PREFIX)
        kept = {s.schema_id: s.text for s in (decode_schema(k[1:], d[32:]) for k, d in rows)}
        assert kept == self.texts_of


TestSchemasModel = SchemasModel.TestCase
TestSchemasModel.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
