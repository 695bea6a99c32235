"""Goal: no JSON schema and no value costs more than its size allows, whoever sent them; and what
was put in place of the library's own keywords says what the library says."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import InvalidRequest, SchemaMismatch
from lakemq.broker_core.api.schemas.formats import AvroFormat, JsonFormat
from lakemq.broker_core.api.schemas.json_validation import TooManySteps

_DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def fits(schema: object, value: object) -> bool:
    try:
        JsonFormat(json.dumps(schema)).check(json.dumps(value).encode())
    except SchemaMismatch:
        return False
    return True


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a+)+$"},
        {"items": {"pattern": "^(a+)+$"}},
        {
            "$schema": _DRAFT_7,
            "$ref": "#/definitions/a",
            "definitions": {"a": {"pattern": "(a|a)*$"}},
        },
        # `$ref` to the whole schema, whose `$schema` names a kind of the library's own
        {"$schema": _DRAFT_7, "items": {"$ref": "#"}, "pattern": "^(a+)+$"},
        {"propertyNames": {"pattern": "^(a+)+$"}},
        {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
    ],
)
def test_no_pattern_backtracks(schema: object) -> None:
    text = "a" * 60 + "!"
    for value in (text, [text], {text: 1}):
        fits(schema, value)  # for days, in an engine that goes back


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "a{1,5000}", "(", "*"])
@pytest.mark.parametrize("within", ["pattern", "patternProperties"])
def test_what_re2_does_not_take_is_refused_by_name(pattern: str, within: str) -> None:
    schema: object = {"pattern": pattern} if within == "pattern" else {within: {pattern: {}}}
    with pytest.raises(InvalidRequest, match="schema: "):
        JsonFormat(json.dumps({"properties": {"a": schema}}))


def test_work_that_doubles_with_each_level_is_refused() -> None:
    defs = {
        f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]}
        for n in range(40)
    }
    schema = {"$ref": "#/$defs/l0", "$defs": {**defs, "l40": {"type": "integer"}}}
    with pytest.raises(TooManySteps, match="more than 10000 steps"):
        JsonFormat(json.dumps(schema)).check(b"1", 10_000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1e999999", "too large"),
        ('{"minimum": -1e400}', "too large"),
        ("NaN", "NaN"),
        ("1", "an object, true or false"),
        ('"x"', "an object"),
        ("[]", "an object"),
        ('{"not":' * 50_000 + "{}" + "}" * 50_000, "deeper than 100"),
        ('{"not":' * 101 + "{}" + "}" * 101, "deeper than 100"),
        ('{"items": {"$schema": "' + _DRAFT_7 + '"}}', r"\$schema stands at the top"),
        ('{"patternProperties": {}, "unevaluatedProperties": false}', "together"),
        (json.dumps({"enum": list(range(5000))}), "a list of 5000"),
        ('{"$schema": 5}', "schema: "),
    ],
)
def test_what_is_no_schema_is_told_in_words(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        JsonFormat(text)


@pytest.mark.parametrize("depth", [101, 900, 100_000])
def test_deep_values_are_refused(depth: int) -> None:
    schema = JsonFormat('{"items": {"$ref": "#"}}')
    schema.check(b"[" * 100 + b"]" * 100)
    with pytest.raises(SchemaMismatch, match="deeper than 100 levels"):
        schema.check(b"[" * depth + b"]" * depth)


@pytest.mark.parametrize("ref", ["#", "http://127.0.0.1:1/", "#/x"])
def test_a_reference_that_leads_nowhere_is_a_mismatch(ref: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"\$: "):
        JsonFormat(json.dumps({"$ref": ref})).check(b"1")


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([1.0, 0.5, "a", "b1", ""]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b1", "c"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-04/schema#", _DRAFT_7, None])
@given(value=_values)
def test_our_keywords_say_what_the_librarys_say(draft: str | None, value: object) -> None:
    for schema in (
        {"uniqueItems": True},
        {"pattern": "^[a-z]$"},
        {
            "properties": {"a": {"type": "integer"}},
            "patternProperties": {"[0-9]": {"type": "null"}},
            "additionalProperties": {"type": "string"},
        },
        {"patternProperties": {"^b": {}}, "additionalProperties": False},
        {"items": {"uniqueItems": True, "not": {"pattern": "1"}}},
    ):
        named = {"$schema": draft, **schema} if draft else schema
        kind = jsonschema.validators.validator_for(named, default=jsonschema.Draft202012Validator)
        assert fits(named, value) == kind(named).is_valid(value)


def test_avro_refuses_fields_that_the_schema_does_not_have() -> None:
    fields = [{"name": "t", "type": "double"}]
    inner = {"type": "record", "name": "I", "fields": fields}
    schema = AvroFormat(
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "in", "type": inner}]})
    )
    assert schema.decode(schema.encode({"in": {"t": 1.5}})) == {"in": {"t": 1.5}}
    for value in ({"in": {"t": 1.5}, "x": 1}, {"in": {"t": 1.5, "typo": 2}}):
        with pytest.raises(SchemaMismatch, match=r"x|typo"):
            schema.encode(value)
