"""JSON Schema whose work is bounded: clients register schemas and send values, and both may be
hostile. Needs the extra `schemas`.

Regular expressions run in RE2, whose time grows with the length of the value alone
(https://github.com/google/re2/wiki/WhyRE2); what it does not take (look-around, back-references) is
refused when the schema is registered. Every keyword that is applied counts as a step, and a value
that takes more steps than `STEPS_MAX` is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NoReturn

from lakemq.broker_core.api.errors import InvalidRequest, SchemaMismatch

STEPS_MAX: Final = 1_000_000
"""Keywords applied to one value: some seconds of one core, in a thread."""
DEPTH_MAX: Final = 100
"""Levels of objects and lists in a schema, and in a value (PostgreSQL, Avro libraries and protobuf
have bounds like it)."""
LIST_MAX: Final = 4096
"""Entries of one list in a schema: some are compared each with each."""
_DATA: Final = ("const", "enum", "default", "examples")
"""Keywords that hold values, not schemas."""


class TooManySteps(SchemaMismatch):
    """Whether the value fits can't be decided within the limit."""


_Keyword = Callable[[Any, Any, Any, Any], Any]
_work = threading.local()


class JsonValidator:
    """A schema ready for use, from any thread. InvalidRequest: the text is not an accepted schema;
    ImportError."""

    def __init__(self, text: str) -> None:
        import jsonschema
        import referencing

        schema = _parsed(text)
        try:
            kind = jsonschema.validators.validator_for(
                schema, default=jsonschema.Draft202012Validator
            )
            _Patterns().look_through(schema)
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise InvalidRequest(f"schema: {error.json_path}: {error.message[:300]}") from None
        except (InvalidRequest, ImportError):
            raise
        except Exception as error:  # an invalid schema makes the library raise anything
            raise InvalidRequest(f"schema: {type(error).__name__}: {error}"[:300]) from None
        self.schema: Any = schema
        # The library takes what `$schema` names wherever it meets it, in place of our kind; so it
        # is left out here, and refused further within.
        if isinstance(schema, dict):
            schema = {name: each for name, each in schema.items() if name != "$schema"}
        # An empty registry: nothing is ever fetched from elsewhere.
        self._validator = _bounded(kind)(schema, registry=referencing.Registry())

    def check(self, value: Any, steps_max: int = STEPS_MAX) -> None:
        """Raises SchemaMismatch, naming the field; TooManySteps."""
        _work.steps = _work.most = steps_max
        try:
            error = next(self._validator.iter_errors(value), None)
        except SchemaMismatch:
            raise
        except RecursionError:
            raise SchemaMismatch("$: the value, or the schema for it, is nested too deep") from None
        except Exception as failure:  # what a schema's words make the library raise
            raise SchemaMismatch(
                f"$: the schema can't be followed: {type(failure).__name__}: {failure}"[:300]
            ) from None
        if error is not None:
            raise SchemaMismatch(f"{error.json_path}: {error.message[:300]}")


def parsed_value(payload: bytes) -> Any:
    """What the JSON text says. SchemaMismatch: it is none, or nested deeper than DEPTH_MAX."""
    try:
        value = json.loads(payload)
    except RecursionError:
        raise SchemaMismatch(f"$: nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise SchemaMismatch(f"$: not JSON: {error}") from None
    if too_deep(value):
        raise SchemaMismatch(f"$: nested deeper than {DEPTH_MAX} levels")
    return value


def _parsed(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise InvalidRequest(f"schema: not JSON: {name}")

    def number(digits: str) -> float:
        found = float(digits)
        return found if abs(found) != float("inf") else refuse(f"{digits[:40]} is too large")

    try:
        schema = json.loads(text, parse_constant=refuse, parse_float=number)
    except RecursionError:
        raise InvalidRequest(f"schema: nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise InvalidRequest(f"schema: not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("schema: a JSON schema is an object, true or false")
    if too_deep(schema):
        raise InvalidRequest(f"schema: nested deeper than {DEPTH_MAX} levels")
    return schema


def too_deep(value: Any, levels: int = DEPTH_MAX) -> bool:
    """Whether a value is nested deeper; level by level, so that no recursion is needed."""
    level = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += [one for one in each.values() if isinstance(one, dict | list)]
            elif isinstance(each, list):
                inner += [one for one in each if isinstance(one, dict | list)]
        if not inner:
            return False
        level = inner
    return True


class _Patterns:
    """Looks through a schema for what can't be bounded. InvalidRequest names it."""

    def look_through(self, schema: Any) -> None:
        words: set[str] = set()
        self._visit(schema, words, root=True)
        if {"patternProperties", "unevaluatedProperties"} <= words:
            raise InvalidRequest(
                "schema: patternProperties and unevaluatedProperties are not taken together"
            )

    def _visit(self, schema: Any, words: set[str], *, root: bool = False) -> None:
        if isinstance(schema, list):
            self._visit_list(schema, words)
        if not isinstance(schema, dict):
            return
        words.update(schema)
        if not root and isinstance(schema.get("$schema"), str):
            raise InvalidRequest("schema: $schema stands at the top only")
        if isinstance(schema.get("pattern"), str):
            compiled(schema["pattern"])
        named = schema.get("patternProperties")
        for pattern in named if isinstance(named, dict) else ():
            compiled(pattern)
        for name, each in schema.items():
            if name in _DATA:
                _check_length(each)
            else:
                self._visit(each, words)

    def _visit_list(self, schemas: list[Any], words: set[str]) -> None:
        _check_length(schemas)
        for each in schemas:
            self._visit(each, words)


def _check_length(found: Any) -> None:
    if isinstance(found, list) and len(found) > LIST_MAX:
        raise InvalidRequest(f"schema: a list of {len(found)} entries; {LIST_MAX} is the most")


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Any:
    """InvalidRequest: RE2 does not take it."""
    import re2

    options = re2.Options()
    # RE2 would write a client's pattern to standard error.
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        (said,) = error.args or (b"",)
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise InvalidRequest(
            f"schema: the regular expression {pattern[:100]!r} is not taken: {text} (RE2's syntax)"
        ) from None


@lru_cache(maxsize=32)
def _bounded(kind: Any) -> Any:
    """The library's validator of a draft, with our keywords in place of those that may take long,
    and all of them counted."""
    import jsonschema

    ours: dict[str, _Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {
        name: _counted(ours.get(name, keyword)) for name, keyword in kind.VALIDATORS.items()
    }
    return jsonschema.validators.extend(kind, keywords)


def _counted(keyword: _Keyword) -> _Keyword:
    def count(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _work.steps -= 1
        if _work.steps < 0:
            raise TooManySteps(f"$: the schema takes more than {_work.most} steps for this value")
        return keyword(validator, value, instance, schema)

    return count


def _error(text: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(text)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not compiled(pattern).search(instance):
        yield _error(f"{instance!r:.200} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if compiled(pattern).search(name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    known = schema.get("properties", {})
    patterns = [compiled(each) for each in schema.get("patternProperties", {})]
    more = [
        name
        for name in instance
        if name not in known and not any(each.search(name) for each in patterns)
    ]
    if isinstance(allowed, dict):
        for name in more:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and more:
        names = ", ".join(repr(name) for name in sorted(more)[:10])
        yield _error(f"additional properties are not allowed: {names:.300}")


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Any]:
    if wanted and isinstance(instance, list) and len(set(map(_key, instance))) != len(instance):
        yield _error("the items are not unique")


def _key(value: Any) -> object:
    """Equal for values that JSON Schema takes for the same: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_key, value))
    # In Python True equals 1; in JSON Schema they are different values.
    return (isinstance(value, bool), value)
