"""Goal: what was opened with a password ends with it: another password, a removed or a disabled
user end tokens and connections; a change of roles does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.api.access import Credentials, Operation, Principal, Resource
from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.security.assembly import Security
from lakemq.broker_core.security.authn.passwords import all_scram_keys
from lakemq.broker_core.security.authn.users import UserRecord, user_line
from lakemq.broker_core.security.catalog_forms import user_of
from lakemq.broker_core.security.settings import (
    PasswordFileSettings,
    SecuritySettings,
    UsersSettings,
)
from lakemq.meta_service.api.auth import AuthChange, AuthCopy, AuthSnapshot, User
from lakemq.meta_service.api.types import Compare, KeyValue, Put
from lakemq.plugins.mqtt.wire.packets import V5
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, disconnected_with

TOPIC = Resource("topic", "t")


def user(name: str, password: str, *roles: str) -> UserRecord:
    """With SCRAM keys alone: they are quick to check."""
    keys = all_scram_keys(password, ("SCRAM-SHA-256",), 4096)
    return UserRecord(name, "", tuple(keys), roles)


def shown(name: str, password: str) -> Credentials:
    return Credentials("native", "", "10.0.0.1", name, password.encode())


class Directory:
    """The MetaService, of which only the users are asked for."""

    def __init__(self, *users: UserRecord) -> None:
        self.revision = 1
        self.users = [user_of(each) for each in users]
        self.changes: asyncio.Queue[AuthChange] = asyncio.Queue()
        self.keys: dict[bytes, bytes] = {}

    async def follow_auth(self, copy: AuthCopy) -> AsyncIterator[AuthChange | None]:
        copy.load(AuthSnapshot(self.revision, tuple(self.users), (), ()))
        yield None
        while True:
            change = await self.changes.get()
            copy.update(change)
            yield change
            self.changes.task_done()

    async def get(self, key: bytes) -> KeyValue | None:
        found = self.keys.get(key)
        return None if found is None else KeyValue(key, found, 1, 1, 1)

    async def txn(self, compares: Sequence[Compare], then: Sequence[Put]) -> tuple[bool, int]:
        held = all(each.key not in self.keys for each in compares)
        self.keys.update({each.key: each.value for each in then} if held else {})
        return held, 1

    async def change(self, name: str, after: User | None) -> None:
        self.revision += 1
        self.changes.put_nowait(AuthChange(self.revision, "user", name, after))
        await self.changes.join()


class Kept:
    """Users of the MetaService."""

    def __init__(self, folder: Path, *users: UserRecord) -> None:
        self.meta = Directory(*users)
        settings = SecuritySettings(authenticators=[UsersSettings(kind="users")])
        meta: Any = self.meta
        self.security = Security(settings, lambda: 0, meta=meta, folder=folder)

    async def set(self, name: str, after: UserRecord | None) -> None:
        await self.meta.change(name, None if after is None else user_of(after))


class Filed:
    """Users of two password files; those who change are in the second."""

    def __init__(self, folder: Path, *users: UserRecord) -> None:
        self._file = folder / "users"
        self._users = {each.name: each for each in users}
        (folder / "others").write_text(user_line(user("eve", "x")) + "\n")
        self._write()
        settings = SecuritySettings(
            authenticators=[
                PasswordFileSettings(kind="password_file", file=str(folder / name))
                for name in ("others", "users")
            ]
        )
        self.security = Security(settings, lambda: 0, folder=folder)

    def _write(self) -> None:
        lines = [user_line(each) for each in self._users.values() if not each.disabled]
        self._file.write_text("".join(line + "\n" for line in lines))

    async def set(self, name: str, after: UserRecord | None) -> None:
        self._users.pop(name)
        if after is not None:
            self._users[name] = after
        self._write()
        for users in self.security._users:
            users._file.refresh()  # type: ignore[attr-defined]  # as it is a second later
        self.security.refresh()


@pytest.fixture(params=[Kept, Filed])
async def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    made = request.param(tmp_path, user("ann", "one", "ops"), user("bob", "one"))
    await made.security.start()
    yield made
    await made.security.stop()


ANOTHER = user("ann", "two", "ops")


@pytest.mark.parametrize("after", [ANOTHER, None, replace(user("ann", "one"), disabled=True)])
async def test_what_a_password_opened_ends_with_it(keeper: Any, after: UserRecord | None) -> None:
    access, told = keeper.security.access, []
    access.on_access_change(lambda: told.append(1))
    ann = await access.authenticate(shown("ann", "one"))
    bob = await access.authenticate(shown("bob", "one"))
    token, _ = access.issue_token(ann)
    bearer = await access.authenticate(Credentials("native", "", "10.0.0.1", token=token))
    for _ in range(2):
        access.authorize(ann, Operation.READ, TOPIC)
        access.authorize(bearer, Operation.READ, TOPIC)
    await keeper.set("ann", after)
    assert told
    for _ in range(2):
        for principal in (ann, bearer):
            assert access.ended(principal)
            with pytest.raises(NotAuthenticated, match="log in again"):
                access.authorize(principal, Operation.READ, TOPIC)
        with pytest.raises(NotAuthenticated):
            await access.authenticate(Credentials("native", "", "10.0.0.1", token=token))
        with pytest.raises(NotAuthenticated):
            await access.authenticate(shown("ann", "one"))
        access.authorize(bob, Operation.READ, TOPIC)
    if after is ANOTHER:
        again = await access.authenticate(shown("ann", "two"))
        access.authorize(again, Operation.READ, TOPIC)
        assert again.roles == ("ops",)


async def test_other_roles_end_nothing(keeper: Any) -> None:
    access = keeper.security.access
    before = user("ann", "one", "ops")
    await keeper.set("ann", before)
    ann = await access.authenticate(shown("ann", "one"))
    token, _ = access.issue_token(ann)
    await keeper.set("ann", replace(before, roles=("audit",)))
    access.authorize(ann, Operation.READ, TOPIC)
    bearer = await access.authenticate(Credentials("native", "", "10.0.0.1", token=token))
    assert bearer.roles == ("audit",), "a token is its user's as it is now"


def test_a_stand_in_of_a_stored_session_goes_by_its_name_alone(tmp_path: Path) -> None:
    """An offline session's will is its user's, whatever its password is by now."""
    made = Filed(tmp_path, user("ann", "one"))
    stored = Principal("ann", attributes={"kept_by": "password_file"})
    assert not made.security.access.ended(stored)
    assert made.security.access.ended(replace(stored, name="cid"))
    assert not made.security.access.ended(Principal("cid")), "whoever knows it, it is no file"


def test_mqtt_connections_end_with_their_credentials() -> None:
    bench = Bench()
    devices = {name: bench.connect(f"c-{name}", version=V5) for name in ("ann", "bob")}
    for name, device in devices.items():
        bench.hub.rights.note(device.connection, Principal(name, credential="old"))
    withdrawn: set[str] = set()
    bench.hub.rights.withdrawn_from = lambda principal: principal.name in withdrawn
    bench.hub.access_changed()
    bench.pass_time(1)
    assert not any(device.closed for device in devices.values())
    withdrawn.add("ann")
    bench.hub.access_changed()
    bench.pass_time(1)
    ann, bob = devices.values()
    assert ann.closed and not bob.closed
    assert disconnected_with(ann) == Reason.NOT_AUTHORIZED
    assert bench.hub.rights.ended == 1


def test_a_new_login_is_not_taken_for_the_one_before() -> None:
    """Equal principals are one object in the hub; that of a changed password does not linger."""
    bench = Bench()
    for credential in ("old", "new"):
        found = bench.hub.same_principal(Principal("ann", credential=credential))
        assert found.credential == ""


async def first_answer(meta: Directory, folder: Path, name: str) -> bytes:
    """What a node that starts now says first to somebody of that name, but for the nonces."""
    settings = SecuritySettings(authenticators=[UsersSettings(kind="users")])
    anything: Any = meta
    node = Security(settings, lambda: 0, meta=anything, folder=folder)
    await node.start()
    exchange = node.access.begin_exchange("SCRAM-SHA-256", shown("", ""))
    said = await exchange.step(f"n,,n={name},r=abc".encode())
    await node.stop()
    return said.data.partition(b",")[2]


async def test_salts_of_nobody_are_the_same_on_all_nodes_and_after_a_restart(
    tmp_path: Path,
) -> None:
    """As those of somebody are: or who asks twice learns who is there."""
    meta = Directory(user("ann", "one"))
    salts: dict[str, set[bytes]] = {}
    for place in ("n1", "n2", "n1"):
        for name in ("ann", "nobody", "bob"):
            salts.setdefault(name, set()).add(await first_answer(meta, tmp_path / place, name))
    assert [len(found) for found in salts.values()] == [1, 1, 1]
    assert len(set.union(*salts.values())) == 3
    other = await first_answer(Directory(), tmp_path / "n3", "nobody")
    assert other not in salts["nobody"], "another cluster has another secret"
