"""Goal: an API key opens what it was made for, until it ends; nothing else that looks like one
does, and nothing of it can be read from what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import Principal
from lakemq.broker_core.security.authn.api_keys import ApiKeys, NewKey, made_key
from lakemq.broker_core.security.authn.users import UserRecord

MADE = made_key()


class Kept:
    def __init__(self, made: NewKey, *, disabled: bool = False, **attributes: str) -> None:
        said = {"api_key": made.hash, "kept_by": "metaservice", **attributes}
        self.users = {
            f"key:{made.key_id}": UserRecord(
                f"key:{made.key_id}", roles=("viewer",), attributes=said, disabled=disabled
            ),
            "key:000000000000": UserRecord("key:000000000000"),
        }

    def find(self, name: str) -> UserRecord | None:
        return self.users.get(name)


def shown(kept: Kept, token: str | None, now_ms: int = 1_000) -> tuple[Principal | None, ApiKeys]:
    keys = ApiKeys(kept, lambda: now_ms)
    return asyncio.run(keys.authenticate(Credentials("admin", "", "", token=token))), keys


def test_a_key_is_who_it_was_made_for() -> None:
    found, keys = shown(Kept(MADE, expires_ms="2000"), MADE.key)
    assert found is not None
    assert (found.name, found.roles, found.expires_ms) == (f"key:{MADE.key_id}", ("viewer",), 2000)
    assert keys.uses == {MADE.key_id: 1_000}
    assert MADE.hash not in str(found)


def test_other_tokens_are_for_others() -> None:
    for token in (None, "eyJhbGciOi.x.y", "lakemq1.abc"):
        assert shown(Kept(MADE), token)[0] is None


@pytest.mark.parametrize(
    "token",
    ["lmqk_", MADE.key + "x", MADE.key[:-1], "lmqk_" + MADE.key[5:].replace("_", "-"),
     made_key().key, MADE.key[:18] + made_key().key[18:], f"lmqk_000000000000_{'A' * 43}",
     MADE.key[:-1] + "é"],
    ids=["empty", "longer", "shorter", "dashes", "unknown", "other secret", "zeros", "not ASCII"],
)  # fmt: skip
def test_what_looks_like_a_key_is_refused(token: str) -> None:
    with pytest.raises(NotAuthenticated, match="unknown, revoked or expired"):
        shown(Kept(MADE), token)


@pytest.mark.parametrize(
    "attributes", [{"expires_ms": "1000"}, {"expires_ms": "soon"}, {"api_key": ""}]
)
def test_an_expired_key_is_refused(attributes: Mapping[str, str]) -> None:
    with pytest.raises(NotAuthenticated):
        shown(Kept(MADE, **attributes), MADE.key)
    with pytest.raises(NotAuthenticated):
        shown(Kept(MADE, disabled=True), MADE.key)


def test_keys_are_long_and_differ() -> None:
    made = [made_key() for _ in range(100)]
    assert len({each.key for each in made}) == len({each.key_id for each in made}) == 100
    assert all(len(each.key) == 61 and each.hash not in each.key for each in made)
