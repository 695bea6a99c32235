"""How the SDK says who it is: a token, a user and password with each call, or a token that it gets
for a SCRAM exchange and renews before it ends.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import grpc

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, NotAuthenticated
from lakemq.plugins.native.proto import security_pb2 as pb
from lakemq.plugins.native.proto.security_pb2_grpc import SecurityStub
from lakemq.plugins.native.sdk.net.scram_client import ScramClient

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
_EXCHANGE_MAX_S: Final = 30.0
_RENEW_AT: Final = 0.8
"""Part of a token's life after which a new one is fetched."""
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Login:
    """Who a client says it is. Its repr shows no secret."""

    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    mechanism: Mechanism = "PLAIN"

    def check(self, bootstrap: str, secure: bool) -> None:
        """Check that the fields fit together and that no secret would travel over the network in
        plain text. Raises InvalidRequest."""
        if (self.username is None) != (self.password is None):
            raise InvalidRequest("username and password come together")
        if self.token is not None and self.username is not None:
            raise InvalidRequest("a token and a username: give one")
        if self.mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            raise InvalidRequest(f"mechanism {self.mechanism!r} is unknown")
        plain = self.token is not None or self.mechanism == "PLAIN"
        if plain and not secure and not _is_this_machine(bootstrap):
            raise InvalidRequest(
                f"a secret would travel to {bootstrap} in plain text: give tls=, or "
                "mechanism='SCRAM-SHA-256'"
            )


def login_of(
    token: str | None, username: str | None, password: str | None, mechanism: Mechanism
) -> Login | None:
    """The login that the arguments of a client make; None if they name neither token nor user."""
    if token is None and username is None and password is None:
        return None
    return Login(token, username, password, mechanism)


def _is_this_machine(bootstrap: str) -> bool:
    if bootstrap.startswith("unix:"):
        return True
    host = bootstrap.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Session:
    """The metadata of one channel's calls."""

    def __init__(self, login: Login, bootstrap: str) -> None:
        self.login = login
        self.bootstrap = bootstrap
        self.renew_s = float("inf")
        """When to log in again, by the monotonic clock."""
        self.metadata: Metadata = ()
        if login.token is not None:
            self.metadata = (("authorization", f"Bearer {login.token}"),)
        elif login.mechanism == "PLAIN":
            both = f"{login.username}:{login.password}".encode()
            self.metadata = (("authorization", f"Basic {base64.b64encode(both).decode()}"),)
        else:
            # SCRAM: no metadata until the first exchange.
            self.renew_s = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.renew_s

    def exchange(self) -> ScramClient:
        login = self.login
        assert login.username is not None
        assert login.password is not None
        nonce = secrets.token_urlsafe(24)
        return ScramClient(login.mechanism, login.username, login.password, nonce)

    def finish(self, client: ScramClient, answers: Sequence[pb.AuthenticateResponse]) -> None:
        """Take the token of an exchange that succeeded. Raises NotAuthenticated."""
        if len(answers) != 2:
            raise NotAuthenticated("the broker did not finish the exchange")
        answer = answers[1]
        client.check(answer.data)
        if not answer.token:
            raise NotAuthenticated("the broker gave no token")
        # `expires_ms` is the broker's clock: the wall clock is read once, from here on the
        # monotonic clock counts.
        left_s = max(0.0, answer.expires_ms / 1000 - time.time_ns() / 1e9)
        self.renew_s = time.monotonic() + _RENEW_AT * left_s
        self.metadata = (("authorization", f"Bearer {answer.token}"),)


class BlockingLogin(_Session):
    """For blocking channels; safe to share between threads."""

    def __init__(self, login: Login, bootstrap: str, channel: grpc.Channel) -> None:
        super().__init__(login, bootstrap)
        self._channel = channel
        self._lock = threading.Lock()

    def current(self) -> Metadata:
        """The metadata for the next call, after logging in where that is due."""
        if self.due:
            with self._lock:
                if self.due:
                    self._log_in()
        return self.metadata

    def _log_in(self) -> None:
        client = self.exchange()
        outgoing: queue.SimpleQueue[pb.AuthenticateRequest | None] = queue.SimpleQueue()
        outgoing.put(pb.AuthenticateRequest(mechanism=self.login.mechanism, data=client.first()))
        answers: list[pb.AuthenticateResponse] = []
        stub: Any = SecurityStub(self._channel)
        try:
            for answer in stub.Authenticate(iter(outgoing.get, None), timeout=_EXCHANGE_MAX_S):
                answers.append(answer)
                if len(answers) == 1:
                    outgoing.put(pb.AuthenticateRequest(data=client.final(answer.data)))
        finally:
            outgoing.put(None)
        self.finish(client, answers)


class AsyncLogin(_Session):
    """For asyncio channels."""

    def __init__(self, login: Login, bootstrap: str, channel: grpc.aio.Channel) -> None:
        super().__init__(login, bootstrap)
        self._channel = channel
        self._lock = asyncio.Lock()
        self._renewer: asyncio.Task[None] | None = None

    async def ensure(self) -> None:
        """Log in where that is due, and from then on in time."""
        if not self.due:
            return
        async with self._lock:
            # Asked again under the lock: of several calls that saw it due, the first logs in for
            # all.
            if self.due:
                await self._log_in()
                if self._renewer is None:
                    self._renewer = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(max(1.0, self.renew_s - time.monotonic()))
            try:
                async with self._lock:
                    await self._log_in()
            except LakeMQError:
                continue  # the next call tells

    async def _log_in(self) -> None:
        client = self.exchange()
        proof: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def requests() -> AsyncIterator[pb.AuthenticateRequest]:
            yield pb.AuthenticateRequest(mechanism=self.login.mechanism, data=client.first())
            yield pb.AuthenticateRequest(data=await proof)

        stub: Any = SecurityStub(self._channel)
        call = stub.Authenticate(requests(), timeout=_EXCHANGE_MAX_S)
        answers: list[pb.AuthenticateResponse] = []
        try:
            async for answer in call:
                answers.append(answer)
                if len(answers) == 1:
                    proof.set_result(client.final(answer.data))
        finally:
            call.cancel()
        self.finish(client, answers)

    async def close(self) -> None:
        """Renew the token no more."""
        if self._renewer is not None:
            self._renewer.cancel()


class _WithMetadata:
    """A multi-callable of gRPC whose calls carry metadata."""

    def __init__(self, callable_: Any, current: Callable[[], Metadata]) -> None:
        self._callable = callable_
        self._current = current

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        given = tuple(options.pop("metadata", None) or ())
        # Read at each call, not when the stub was made: the token is renewed meanwhile.
        return self._callable(*arguments, metadata=(*given, *self._current()), **options)


class _Awaited(_WithMetadata):
    """The same for asyncio's unary calls, which can wait for the login."""

    def __init__(self, callable_: Any, login: AsyncLogin) -> None:
        super().__init__(callable_, lambda: login.metadata)
        self._login = login

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        await self._login.ensure()
        return await super().__call__(*arguments, **options)


class _Channel:
    """A channel whose calls carry metadata; for the rest, the channel inside."""

    def __init__(self, channel: Any, login: BlockingLogin | AsyncLogin) -> None:
        self._channel = channel
        self.login = login

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._channel, name)
        if name not in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            return made
        login = self.login
        if isinstance(login, AsyncLogin):
            if name == "unary_unary":
                return lambda *a, **o: _Awaited(made(*a, **o), login)
            # Streams of grpc.aio are made without awaiting, so they can't log in themselves:
            # `Client.__aenter__` has, and the renewer keeps the token fresh.
            return lambda *a, **o: _WithMetadata(made(*a, **o), lambda: login.metadata)
        return lambda *a, **o: _WithMetadata(made(*a, **o), login.current)


def with_login(channel: grpc.Channel, login: Login | None, bootstrap: str) -> grpc.Channel:
    """The channel, whose calls carry what `login` says; None: as it is."""
    if login is None:
        return channel
    return cast(grpc.Channel, _Channel(channel, BlockingLogin(login, bootstrap, channel)))


def with_async_login(
    channel: grpc.aio.Channel, login: Login | None, bootstrap: str
) -> tuple[grpc.aio.Channel, AsyncLogin | None]:
    """The channel, whose calls carry what `login` says, and its session."""
    if login is None:
        return channel, None
    made = AsyncLogin(login, bootstrap, channel)
    return cast(grpc.aio.Channel, _Channel(channel, made)), made
