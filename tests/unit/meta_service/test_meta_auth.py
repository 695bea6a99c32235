"""Users, ACL rules and quotas in the pure catalog."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.meta_service.api.auth import (
    AclRule,
    AuthChange,
    AuthCopy,
    AuthSnapshot,
    Entry,
    Quota,
    ScramCredential,
    User,
)
from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.api.remote.auth_calls import entry_message, entry_of
from lakemq.meta_service.catalog.auth import KINDS, decode_entry, identify, put_command
from lakemq.meta_service.catalog.command_codec import encode_command
from lakemq.meta_service.catalog.commands import SetFeatureLevel
from tests.support.meta.catalog_rig import Catalog

SCRAM = ScramCredential("SCRAM-SHA-256", b"s" * 16, 4096, b"k" * 32, b"v" * 32)
ARGON2 = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$YWhhc2g"
USER = User("ann", ("ops",), {"team": "a"}, scram=(SCRAM,), password_hash=ARGON2)
RULE = AclRule("r1", "role:ops", "allow", "write", "topic_name", "d/%c/#", "filter", (0, 1), False)
QUOTA = Quota("*", bytes_in_per_s=10, connections=3)


def ready() -> Catalog:
    catalog = Catalog()
    assert not catalog.do(SetFeatureLevel(2)).result.code
    return catalog


def put(catalog: Catalog, entry: Entry, expected: int | None = None) -> str:
    return catalog.do(put_command(entry, expected)).result.code


def stored(catalog: Catalog) -> dict[bytes, Entry]:
    rows = catalog.store.scan(b"k\x00auth/")
    return {key[1:]: decode_entry(key[1:], data[32:], 0) for key, data in rows}


@pytest.mark.parametrize("entry", [USER, RULE, QUOTA], ids=["user", "rule", "quota"])
def test_an_entry_comes_back_as_it_was_put(entry: Entry) -> None:
    catalog = ready()
    assert put(catalog, entry) == ""
    assert list(stored(catalog).values()) == [entry]
    assert entry_of(entry_message(entry)) == entry


@pytest.mark.parametrize("entry", [USER, RULE, QUOTA], ids=["user", "rule", "quota"])
def test_a_compare_decides_and_changes_nothing_when_it_fails(entry: Entry) -> None:
    catalog = ready()
    assert put(catalog, entry, 7) == "COMPARE_FAILED"
    assert stored(catalog) == {}
    assert put(catalog, entry, 0) == ""
    assert put(catalog, entry, 0) == "COMPARE_FAILED"
    revision = catalog.state.revision
    kind, name = identify(next(iter(stored(catalog))))
    stale = catalog.do(KINDS[kind].delete(name, revision - 1))
    assert stale.result.code == "COMPARE_FAILED"
    assert catalog.do(KINDS[kind].delete(name, revision)).result.code == ""
    assert catalog.do(KINDS[kind].delete(name, None)).result.code == "NOT_FOUND"


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (replace(USER, name=""), "user.name"),
        (replace(USER, name="a\x00b"), "user.name"),
        (replace(USER, password_hash="hunter2"), "user.password_hash"),
        (replace(USER, password_hash="$argon2i$v=19$m=1$YQ$YQ"), "user.password_hash"),
        (replace(USER, scram=(SCRAM, SCRAM)), "two credentials"),
        (replace(USER, scram=(replace(SCRAM, mechanism="PLAIN"),)), "scram.mechanism"),
        (replace(USER, scram=(replace(SCRAM, stored_key=b"k"),)), "scram.stored_key"),
        (replace(USER, scram=(replace(SCRAM, mechanism="SCRAM-SHA-512"),)), "scram.stored_key"),
        (replace(USER, scram=(replace(SCRAM, iterations=1),)), "scram.iterations"),
        (replace(USER, scram=(replace(SCRAM, salt=b""),)), "scram.salt"),
        (replace(USER, roles=("r",) * 65), "user.roles"),
        (replace(USER, attributes={"a": "x" * 2000}), "user.attributes.a"),
        (replace(RULE, rule_id="a/b"), "rule.rule_id"),
        (replace(RULE, principal="ann"), "rule.principal"),
        (replace(RULE, principal="user:"), "rule.principal"),
        (replace(RULE, effect="maybe"), "rule.effect"),
        (replace(RULE, operation="Read it"), "rule.operation"),
        (replace(RULE, resource=""), "rule.resource"),
        (replace(RULE, pattern=""), "rule.pattern"),
        (replace(RULE, pattern_type="regex"), "rule.pattern_type"),
        (replace(RULE, qos=(3,)), "rule.qos"),
        (replace(QUOTA, connections=-1), "quota.connections"),
        (replace(QUOTA, principal="bob"), "quota.principal"),
    ],
)
def test_bad_fields_are_named(entry: Entry, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        encode_command(put_command(entry, None))


def test_secrets_are_not_in_the_text_of_a_user() -> None:
    text = repr(USER)
    for secret in (ARGON2, repr(SCRAM.salt), repr(SCRAM.stored_key), repr(SCRAM.server_key)):
        assert secret not in text


def test_an_old_cluster_refuses_entries_until_its_level_is_raised() -> None:
    catalog = Catalog()
    assert put(catalog, USER) == "UNSUPPORTED_COMMAND"
    assert stored(catalog) == {}


_entries: Any = st.one_of(
    st.builds(
        User, st.sampled_from(["a", "b", "/"]), st.lists(st.just("r"), max_size=1).map(tuple)
    ),
    st.builds(
        AclRule,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["*", "user:a"]),
        st.just("deny"),
        st.just("read"),
        st.just("topic"),
        st.sampled_from(["x", "y/"]),
    ),
    st.builds(Quota, st.sampled_from(["*", "user:a"]), st.none() | st.integers(0, 9)),
)


@given(st.lists(st.tuples(_entries, st.booleans()), max_size=12), st.integers(0, 12))
def test_a_copy_from_a_snapshot_and_the_changes_behind_it_is_whole(
    steps: list[tuple[Entry, bool]], cut: int
) -> None:
    catalog, copy = ready(), AuthCopy()
    for number, (entry, is_put) in enumerate(steps):
        if number == cut:
            now = [decode_entry(k, v, r) for k, v, r in _rows(catalog)]
            copy.load(
                AuthSnapshot(
                    catalog.state.revision,
                    tuple(e for e in now if isinstance(e, User)),
                    tuple(e for e in now if isinstance(e, AclRule)),
                    tuple(e for e in now if isinstance(e, Quota)),
                )
            )
        command = put_command(entry, None)
        kind, name = identify(command.key())  # type: ignore[attr-defined]
        applied = catalog.do(command if is_put else KINDS[kind].delete(name, None))
        if number >= cut:
            for key, row in applied.rows:
                value = decode_entry(key, row.value, row.mod_revision) if row else None
                copy.update(AuthChange(applied.state.revision, *identify(key), value))
    if len(steps) > cut:
        held = [*copy.users.values(), *copy.rules.values(), *copy.quotas.values()]
        expected = [decode_entry(k, v, r) for k, v, r in _rows(catalog)]
        assert sorted(held, key=repr) == sorted(expected, key=repr)


def _rows(catalog: Catalog) -> list[tuple[bytes, bytes, int]]:
    rows = catalog.store.scan(b"k\x00auth/")
    return [(k[1:], data[32:], int.from_bytes(data[8:16], "little")) for k, data in rows]
