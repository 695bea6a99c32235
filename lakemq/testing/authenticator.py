"""What every authenticator must do: the suite for the port `Authenticator`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import pytest

from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.api.ports import Authenticator, Credentials
from lakemq.broker_core.api.types import Principal

ANSWER_MAX_S: Final = 60
HOSTILE_TEXTS: Final = ("", " ", "\x00", "a\nb", "../../x", "%c", "ü" * 30_000, "*", "#")
HOSTILE_BYTES: Final = (b"", b"\x00", b"\xff\xfe", b"x" * 65_535)


async def asked(authenticator: Authenticator, credentials: Credentials) -> Principal | str | None:
    """The principal, None, or `refused`: whatever else is raised fails the test."""
    try:
        async with asyncio.timeout(ANSWER_MAX_S):
            return await authenticator.authenticate(credentials)
    except NotAuthenticated:
        return "refused"


class AuthenticatorContract:
    """Give three fixtures: `authenticator`, `accepted` (credentials that it accepts) and `refused`
    (credentials that it handles, and that are wrong). `foreign` are some that it must leave to the
    next authenticator: override it when anonymous ones of protocol `contract` are not.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def refused(self) -> Sequence[Credentials]:
        """None: right for an authenticator that refuses none, but leaves all to the next."""
        return ()

    @pytest.fixture
    def foreign(self) -> Sequence[Credentials]:
        """Credentials that are left to the next authenticator, which answers None."""
        return [Credentials("contract", "a-user", "192.0.2.1")]

    async def test_accepted_credentials_make_a_principal(
        self, authenticator: Authenticator, accepted: Credentials
    ) -> None:
        """A principal has a name, a known kind, and sorted roles."""
        principal = await asked(authenticator, accepted)
        assert isinstance(principal, Principal), f"it answered {principal!r}"
        assert principal.name, "a principal has a name: rules go by it"
        assert principal.kind in ("user", "anonymous"), "only the node itself is of kind `node`"
        assert tuple(sorted(principal.roles)) == principal.roles

    async def test_the_same_credentials_get_the_same_answer(
        self, authenticator: Authenticator, accepted: Credentials, refused: Sequence[Credentials]
    ) -> None:
        """Also at once, and after refusals of others."""
        first = await asked(authenticator, accepted)
        for each in refused:
            await asked(authenticator, each)
        answers = await asyncio.gather(*(asked(authenticator, accepted) for _ in range(10)))
        assert answers == [first] * 10

    async def test_wrong_credentials_are_refused(
        self, authenticator: Authenticator, refused: Sequence[Credentials]
    ) -> None:
        """NotAuthenticated, whose text holds no secret: it reaches clients and logs."""
        for each in refused:
            with pytest.raises(NotAuthenticated) as raised:
                await authenticator.authenticate(each)
            for secret in secrets_of(each):
                assert secret not in str(raised.value), "errors reach clients and logs"

    async def test_refused_ones_stay_refused_after_an_accepted_one(
        self,
        authenticator: Authenticator,
        accepted: Credentials,
        refused: Sequence[Credentials],
    ) -> None:
        """What is remembered of an accepted client is never given to another."""
        await asked(authenticator, accepted)
        for each in refused:
            assert await asked(authenticator, each) == "refused"

    async def test_a_changed_secret_is_not_accepted(
        self, authenticator: Authenticator, accepted: Credentials
    ) -> None:
        """Also when the right one was accepted just before."""
        await asked(authenticator, accepted)
        for changed in with_other_secrets(accepted):
            answer = await asked(authenticator, changed)
            assert not isinstance(answer, Principal), f"it accepted {changed!r} with another secret"

    async def test_what_is_not_its_own_is_left_to_the_next(
        self, authenticator: Authenticator, foreign: Sequence[Credentials]
    ) -> None:
        """The answer None, not a refusal."""
        for each in foreign:
            assert await authenticator.authenticate(each) is None

    async def test_one_that_needs_credentials_leaves_strangers_to_the_next(
        self, authenticator: Authenticator
    ) -> None:
        """None for who shows nothing: the broker does not ask it about such clients."""
        if getattr(authenticator, "needs_credentials", False):
            for host in ("127.0.0.1", "192.0.2.1"):
                assert await asked(authenticator, Credentials("mqtt", "a-client", host)) is None

    async def test_hostile_credentials_raise_nothing_else(
        self, authenticator: Authenticator, accepted: Credentials
    ) -> None:
        """Any text or bytes in any field: an answer or NotAuthenticated."""
        for text in HOSTILE_TEXTS:
            await asked(authenticator, replace(accepted, client_id=text))
            await asked(authenticator, replace(accepted, username=text))
            await asked(authenticator, replace(accepted, token=text))
            await asked(authenticator, replace(accepted, certificate_subject=text))
        for data in HOSTILE_BYTES:
            await asked(authenticator, replace(accepted, password=data))
        await asked(authenticator, replace(accepted, certificate_names=("DNS:\x00", "x", "")))


def secrets_of(credentials: Credentials) -> Iterable[str]:
    """Texts that no error may hold."""
    password = (credentials.password or b"").decode("utf-8", "replace")
    return [secret for secret in (password, credentials.token or "") if len(secret) > 3]


def with_other_secrets(credentials: Credentials) -> Iterable[Credentials]:
    """The same, with a password or token that is not theirs; none where they have neither."""
    if credentials.password is not None:
        for other in (b"", credentials.password + b"x", credentials.password[:-1], None):
            yield replace(credentials, password=other)
    if credentials.token is not None:
        for token in ("", credentials.token + "x", credentials.token[:-1]):
            yield replace(credentials, token=token)
