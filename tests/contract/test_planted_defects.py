"""Goal: the contract suites of `lakemq.testing` fail where an implementation is wrong.

Each defect is one that a plugin may well have; the suite's tests are called one by one, and those
named here must be among the ones that fail.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lakemq_line.plugin import LineSettings
from lakemq_line.server import LineListener
from opentelemetry.metrics import NoOpMeter

from lakemq.broker_core.api.errors import NotAuthenticated, StartupError
from lakemq.broker_core.api.ports import Broker, PartitionLog, Storage
from lakemq.broker_core.api.types import (
    AccessContext,
    AppendResult,
    Columns,
    Credentials,
    FetchResult,
    Offset,
    Operation,
    Principal,
    Resource,
    TopicInfo,
)
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing import (
    AuthenticatorContract,
    AuthorizerContract,
    InterceptorContract,
    ListenerContract,
    Question,
    StorageContract,
    listener,
)
from lakemq.testing.storage import open_alone


async def failures(suite: type, **fixtures: Any) -> set[str]:
    """Names of the suite's tests that fail."""
    failed = set()
    for name, test in inspect.getmembers(suite, inspect.iscoroutinefunction):
        if not name.startswith("test_"):
            continue
        wanted = list(inspect.signature(test).parameters)[1:]
        values = {each: fixtures[each] for each in wanted}
        try:
            async with asyncio.timeout(60):
                await test(suite(), **{n: v() if n in FRESH else v for n, v in values.items()})
        except (Exception, pytest.fail.Exception):
            failed.add(name.removeprefix("test_"))
    return failed


FRESH = ("authenticator", "authorizer", "interceptor", "make_storage")
"""Fixtures that are made for each test."""


# -- storage


class Log:
    """A log of the journal, with something wrong."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class ServesTheUnflushed(Log):
    @property
    def high_watermark(self) -> Offset:
        return Offset(self._log.log_end_offset + 1)


class NeverWaits(Log):
    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        return await self._log.fetch(offset, bytes_max=bytes_max)


class NamesTheWrongOffset(Log):
    def append(self, *batch: Any) -> asyncio.Future[AppendResult]:
        async def answer() -> AppendResult:
            placed = await self._log.append(*batch)
            return replace(placed, base_offset=Offset(placed.base_offset + 1))

        return asyncio.ensure_future(answer())


class DeletesTooFew(Log):
    async def delete_records(self, before: Offset) -> Offset:
        await self._log.delete_records(Offset(max(0, before - 1)))
        return before


class Engine:
    """The journal, whose logs are of another kind."""

    def __init__(self, storage: Storage, kind: Callable[[PartitionLog], Any]) -> None:
        self._storage = storage
        self._kind = kind
        self._logs: dict[tuple[str, int], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def open_partition(self, topic: TopicInfo, partition: int) -> Any:
        key = topic.topic_id, partition
        if key not in self._logs:
            self._logs[key] = self._kind(await open_alone(self._storage, topic, partition))
        return self._logs[key]


@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        (Log, set()),
        (ServesTheUnflushed, {"partitions_are_apart"}),
        (NeverWaits, {"long_poll_ends_with_the_next_record"}),
        (NamesTheWrongOffset, {"what_was_acknowledged_is_read_back_in_order"}),
        (DeletesTooFew, {"deleted_records_are_gone_for_good"}),
    ],
)
async def test_storage(kind: type[Log], noticed: set[str], tmp_path: Path) -> None:
    folders = iter(tmp_path / str(number) for number in range(100))

    def fresh() -> Callable[[], Engine]:
        folder = next(folders)
        settings = JournalSettings(free_min_bytes=0)
        return lambda: Engine(JournalStorage(folder, settings), kind)

    found = await failures(StorageContract, make_storage=fresh)
    assert found >= noticed and bool(found) == bool(noticed), found


# -- authenticator

ANN = Credentials("mqtt", "c1", "10.0.0.1", "ann", b"correct horse")


class Right:
    """Knows one user."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.username != "ann":
            return None
        if credentials.password != b"correct horse":
            raise NotAuthenticated("wrong user or password")
        return Principal("ann")


class RemembersByName(Right):
    def __init__(self) -> None:
        self._known: dict[str | None, Principal | None] = {}

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.username not in self._known:
            self._known[credentials.username] = await super().authenticate(credentials)
        return self._known[credentials.username]


class ShowsThePassword(Right):
    async def authenticate(self, credentials: Credentials) -> Principal | None:
        try:
            return await super().authenticate(credentials)
        except NotAuthenticated:
            raise NotAuthenticated(f"{credentials.password!r} is wrong") from None


class RefusesStrangers(Right):
    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if (principal := await super().authenticate(credentials)) is None:
            raise NotAuthenticated("who are you?")
        return principal


class TrustsText(Right):
    async def authenticate(self, credentials: Credentials) -> Principal | None:
        (credentials.password or b"").decode()
        return await super().authenticate(credentials)


class MakesNodes(Right):
    async def authenticate(self, credentials: Credentials) -> Principal | None:
        principal = await super().authenticate(credentials)
        return principal and replace(principal, kind="node")


class KnowsDevices(Right):
    needs_credentials = True

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.username is None and credentials.client_id == "a-client":
            return Principal("a-device")
        return await super().authenticate(credentials)


@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        (Right, set()),
        (KnowsDevices, {"one_that_needs_credentials_leaves_strangers_to_the_next"}),
        (RemembersByName, {"a_changed_secret_is_not_accepted"}),
        (ShowsThePassword, {"wrong_credentials_are_refused"}),
        (RefusesStrangers, {"what_is_not_its_own_is_left_to_the_next"}),
        (TrustsText, {"hostile_credentials_raise_nothing_else"}),
        (MakesNodes, {"accepted_credentials_make_a_principal"}),
    ],
)
async def test_authenticator(kind: type[Right], noticed: set[str]) -> None:
    found = await failures(
        AuthenticatorContract, authenticator=kind, accepted=ANN,
        refused=[replace(ANN, password=b"battery staple")],
        foreign=[Credentials("contract", "a-user", "h")],
    )  # fmt: skip
    assert found >= noticed and bool(found) == bool(noticed), found


# -- authorizer


class Fair:
    """User ann may write topic `a`."""

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool | None:
        return (
            (principal.name, principal.kind) == ("ann", "user")
            and operation is Operation.WRITE
            and resource.name == "a"
        )


class GoesByName(Fair):
    def authorize(self, principal: Principal, *rest: Any) -> bool | None:
        return super().authorize(replace(principal, kind="user"), *rest)


class RemembersTheClient(Fair):
    def __init__(self) -> None:
        self._known: dict[str, bool | None] = {}

    def authorize(self, principal: Principal, *rest: Any) -> bool | None:
        answer = super().authorize(principal, *rest)
        return self._known.setdefault(principal.name, answer)


class AnswersOne(Fair):
    def authorize(self, *question: Any) -> Any:
        return int(bool(super().authorize(*question)))


class TripsOverNames(Fair):
    def authorize(self, principal: Principal, operation: Operation, *rest: Any) -> bool | None:
        assert rest[0].name[0] != "/"
        return super().authorize(principal, operation, *rest)


@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        (Fair, set()),
        (GoesByName, {"the_anonymous_are_not_taken_for_users_of_that_name"}),
        (RemembersTheClient, {"no_answer_depends_on_what_was_asked_before"}),
        (AnswersOne, {"it_answers_true_false_or_none", "any_question_gets_an_answer"}),
        (TripsOverNames, {"any_question_gets_an_answer"}),
    ],
)
async def test_authorizer(kind: type[Fair], noticed: set[str]) -> None:
    write = Question(Principal("ann"), Operation.WRITE, Resource("topic", "a"))
    found = await failures(
        AuthorizerContract, authorizer=kind, allowed=[write],
        denied=[write._replace(resource=Resource("topic", "b"))], foreign=[],
    )  # fmt: skip
    assert found >= noticed and bool(found) == bool(noticed), found


# -- interceptor


class Passes:
    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        return columns


class DropsNulls(Passes):
    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        return columns._replace(values=[each for each in columns.values if each is not None])


class Numbers(Passes):
    def __init__(self) -> None:
        self._next = 0

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        self._next += 1
        return columns._replace(keys=[b"%d" % self._next] * len(columns.values))


class ChangesInPlace(Passes):
    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        assert isinstance(columns.values, list)
        columns.values[0] = b"changed"
        return columns


class TakesBatchesAtTimes(Passes):
    def __init__(self) -> None:
        self._takes = False

    def takes_batches(self, topic: str) -> bool:
        self._takes = not self._takes
        return self._takes


class RaisesOwn(Passes):
    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        if None in columns.values:
            raise ValueError("no value")
        return columns


@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        (Passes, set()),
        (DropsNulls, {"what_it_gives_can_be_stored"}),
        (Numbers, {"records_shown_again_or_by_halves_come_out_the_same"}),
        (ChangesInPlace, {"what_came_is_left_as_it_was"}),
        (TakesBatchesAtTimes, {"it_says_which_batches_it_takes"}),
        (RaisesOwn, {"refusals_are_errors_of_lakemq"}),
    ],
)
async def test_interceptor(kind: type[Passes], noticed: set[str]) -> None:
    refused = [Columns([None])] if kind is RaisesOwn else []
    samples: Sequence[Columns] = [Columns([b"a", b"b", None], [b"k", None, b""])]
    found = await failures(
        InterceptorContract, interceptor=kind, topic="t", principal=Principal("ann"),
        samples=samples, refused=refused,
    )  # fmt: skip
    assert found >= noticed and bool(found) == bool(noticed), found


# -- listener


class NamesTheSetting(LineListener):
    def addresses(self) -> Sequence[str]:
        return [each.rpartition(":")[0] + ":0" for each in super().addresses()]


class LeavesConnections(LineListener):
    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()


class RaisesOSError(LineListener):
    async def start(self) -> None:
        try:
            await super().start()
        except StartupError as error:
            raise OSError(98, str(error)) from None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        (LineListener, set()),
        (NamesTheSetting, {"it_says_where_it_listens"}),
        (LeavesConnections, {"stop_ends_connections"}),
        (RaisesOSError, {"a_port_that_is_taken_is_a_startup_error"}),
    ],
)
async def test_listener(
    kind: type[LineListener], noticed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody:
        async def authenticate(self, credentials: Credentials) -> Principal:
            return Principal(credentials.client_id, "anonymous")

    def make(broker: Broker, port: int) -> LineListener:
        return kind(broker, LineSettings(port=port), NoOpMeter("test"))

    monkeypatch.setattr(listener, "WAIT_S", 3.0)
    found = await failures(ListenerContract, broker=Nobody(), make_listener=make)
    assert found >= noticed and bool(found) == bool(noticed), found
