"""Goal: strangers from elsewhere stay out; the first plugin that knows decides."""

import pytest

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.errors import NotAuthenticated, NotAuthorized, UnknownMechanism
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    Accepted,
    AccessContext,
    Challenge,
    Operation,
    Principal,
    Resource,
)


class Named:
    """Knows one user."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.username is None:
            return None
        if credentials.password != b"right":
            raise NotAuthenticated("wrong password")
        return Principal(credentials.username)


class OnlyReads:
    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool | None:
        return None if principal.name == "root" else operation is Operation.READ


def who(host: str, username: str | None = None, password: bytes | None = None) -> Credentials:
    return Credentials("test", "c", host, username, password)


async def test_anonymous_on_loopback_only() -> None:
    access = Access([], [])
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", ""):
        assert await access.authenticate(who(host)) is ANONYMOUS
    for host in ("10.0.0.1", "192.168.1.1", "fe80::1%eth0", "8.8.8.8", "example.org"):
        with pytest.raises(NotAuthenticated, match=host):
            await access.authenticate(who(host))


class ByPassword(Named):
    needs_credentials = True


class ByAddress(Named):
    needs_credentials = False


async def test_strangers_are_known_at_once_where_no_authenticator_could_know_them() -> None:
    access = Access([ByPassword()], [])
    assert access.recognize(who("127.0.0.1")) is ANONYMOUS
    with pytest.raises(NotAuthenticated, match=r"10\.0\.0\.1"):
        access.recognize(who("10.0.0.1"))
    assert (access.accepted, access.refused) == (1, 1)
    for shown in (
        who("127.0.0.1", "ann"),
        who("127.0.0.1", None, b"right"),
        Credentials("test", "c", "127.0.0.1", token="t"),
        Credentials("test", "c", "127.0.0.1", certificate_subject="CN=c"),
    ):
        assert access.recognize(shown) is None
    for asked in (Named(), ByAddress()):
        assert Access([ByPassword(), asked], []).recognize(who("127.0.0.1")) is None
    access.use([Named()], [], [])
    assert access.recognize(who("127.0.0.1")) is None
    assert (access.accepted, access.refused) == (1, 1)


async def test_authenticators_are_asked_first() -> None:
    access = Access([Named()], [])
    assert (await access.authenticate(who("8.8.8.8", "ann", b"right"))).name == "ann"
    with pytest.raises(NotAuthenticated, match="wrong password"):
        await access.authenticate(who("127.0.0.1", "ann", b"wrong"))
    assert await access.authenticate(who("127.0.0.1")) is ANONYMOUS


def test_authorizers_decide_and_none_passes_on() -> None:
    access = Access([], [OnlyReads()])
    topic = Resource("topic", "t")
    access.authorize(Principal("ann"), Operation.READ, topic)
    access.authorize(Principal("root"), Operation.WRITE, topic)
    with pytest.raises(NotAuthorized, match="ann may not write topic t"):
        access.authorize(Principal("ann"), Operation.WRITE, topic)


class Explains(OnlyReads):
    def reason(self, principal: Principal, *rest: object) -> str:
        return f"the rule about {principal.name}"


def test_a_verdict_names_who_decides() -> None:
    ann, topic = Principal("ann"), Resource("topic", "t")
    silent, explains = Access([], [OnlyReads()]), Access([], [Explains()])
    assert silent.verdict(ann, Operation.WRITE, topic) == (False, "authorizer OnlyReads")
    assert explains.verdict(ann, Operation.READ, topic) == (True, "the rule about ann")
    root = explains.verdict(Principal("root"), Operation.WRITE, topic)
    assert root == (True, "nothing forbids it")
    internal = explains.verdict(ann, Operation.READ, Resource("topic", "__audit"))
    assert not internal.allowed
    assert "rule" not in internal.reason
    ended = explains.verdict(Principal("ann", expires_ms=0), Operation.READ, topic)
    assert ended == (False, "the credentials have expired; log in again")


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(who("h", "u", b"secret"))


class Countdown:
    """Takes steps until nothing is left."""

    name = "COUNTDOWN"

    def __init__(self, left: int = 2) -> None:
        self.left = left

    def begin(self, credentials: Credentials) -> "Countdown":
        return Countdown(self.left)

    async def step(self, data: bytes) -> Challenge | Accepted:
        if data == b"stop":
            raise NotAuthenticated("stopped")
        self.left -= 1
        return Challenge(b"more") if self.left else Accepted(Principal("ann"), b"done")


async def test_exchanges_run_beside_each_other() -> None:
    access = Access([], [], [Countdown(), Countdown(9)])
    assert access.mechanisms() == ("COUNTDOWN",)  # the first of a name counts
    one, two = (access.begin_exchange("COUNTDOWN", who("8.8.8.8")) for _ in range(2))
    assert await one.step(b"") == Challenge(b"more")
    assert await one.step(b"") == Accepted(Principal("ann"), b"done")
    with pytest.raises(NotAuthenticated, match="stopped"):
        await two.step(b"stop")
    with pytest.raises(UnknownMechanism, match="supported: COUNTDOWN"):
        access.begin_exchange("PLAIN", who("8.8.8.8"))


def test_keepers_of_answers_are_told_of_changes() -> None:
    access, told = Access([], []), list[str]()
    remove = access.on_access_change(lambda: told.append("changed"))
    access.rules_changed()
    remove()
    access.rules_changed()
    assert told == ["changed"]


def test_a_principal_acts_no_longer_than_its_credentials_hold() -> None:
    now_ms = [0]
    access = Access([], [], now_ms=lambda: now_ms[0])
    bearer, topic = Principal("ann", expires_ms=1000), Resource("topic", "t")
    access.authorize(bearer, Operation.READ, topic)
    now_ms[0] = 1000
    with pytest.raises(NotAuthenticated, match="have expired"):
        access.authorize(bearer, Operation.READ, topic)
    access.authorize(Principal("self", "node", expires_ms=1), Operation.WRITE, topic)


async def test_where_strangers_are_taken() -> None:
    for host in ("127.0.0.1", "::1", "", "unix"):
        assert await Access([], []).authenticate(who(host)) is ANONYMOUS
    for host in ("127.0.0.1", "10.0.0.1"):
        assert await Access([], [], anonymous="always").authenticate(who(host)) is ANONYMOUS
        with pytest.raises(NotAuthenticated, match="not accepted"):
            await Access([], [], anonymous="never").authenticate(who(host))


async def test_a_token_that_nobody_knows_makes_nobody_anonymous() -> None:
    with pytest.raises(NotAuthenticated):
        await Access([], []).authenticate(Credentials("native", "", "127.0.0.1", token="x"))


def test_internal_topics_are_nodes_own_whatever_authorizers_say() -> None:
    """Asked twice, so that nothing that is remembered opens them."""
    operator, ann = Principal("root"), Principal("ann", roles=("admin",))
    access = Access([], [], is_operator=lambda principal: principal.name == "root")
    for name in ("__mqtt_sessions", "__x", "_lakemq_offsets", "__"):
        for operation in (*Operation, *Operation):
            access.authorize(Principal("mqtt", "node"), operation, Resource("topic", name))
            for principal in (ann, ANONYMOUS):
                with pytest.raises(NotAuthorized, match="is internal"):
                    access.authorize(principal, operation, Resource("topic", name))
            if operation in (Operation.READ, Operation.DESCRIBE):
                access.authorize(operator, operation, Resource("topic", name))
            else:
                with pytest.raises(NotAuthorized, match="is internal"):
                    access.authorize(operator, operation, Resource("topic", name))
    with pytest.raises(NotAuthorized, match="it cannot be read"):
        access.authorize(operator, Operation.READ, Resource("topic", "_lakemq_staged"))
    for name in ("_x", "a__b", "lakemq_x", "_lakemq"):
        access.authorize(ann, Operation.WRITE, Resource("topic", name))
    access.authorize(ann, Operation.WRITE, Resource("topic_name", "__mqtt_sessions"))
