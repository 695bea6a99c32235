"""How a plugin is tested with `lakemq.testing`: contracts of its ports, and a whole broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import lakemq_line.plugin
import pytest
from lakemq_line.access import LineAuthenticator, LineAuthorizer
from lakemq_line.origin import OriginHeader
from lakemq_line.server import LineListener
from lakemq_line.settings import LineSettings
from opentelemetry.metrics import NoOpMeter

from lakemq.broker_core.api.ports import Broker, Credentials
from lakemq.broker_core.api.types import Columns, Operation, Principal, Resource
from lakemq.testing import (
    AuthenticatorContract,
    AuthorizerContract,
    FakeClock,
    InterceptorContract,
    ListenerContract,
    MakeListener,
    Question,
    running_broker,
)

CLIENT = Principal("127.0.0.1:50000", "anonymous", {"protocol": "line"})


class TestListener(ListenerContract):
    @pytest.fixture
    def make_listener(self) -> MakeListener:
        def make(broker: Broker, port: int) -> LineListener:
            return LineListener(broker, LineSettings(port=port), NoOpMeter("test"))

        return make


class TestAuthenticator(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self) -> LineAuthenticator:
        return LineAuthenticator()

    @pytest.fixture
    def accepted(self) -> Credentials:
        return Credentials("line", "127.0.0.1:50000", "127.0.0.1")


class TestAuthorizer(AuthorizerContract):
    @pytest.fixture
    def authorizer(self) -> LineAuthorizer:
        return LineAuthorizer(["meters"])

    @pytest.fixture
    def allowed(self) -> Sequence[Question]:
        return [Question(CLIENT, Operation.WRITE, Resource("topic", "meters"))]

    @pytest.fixture
    def denied(self) -> Sequence[Question]:
        return [
            Question(CLIENT, Operation.WRITE, Resource("topic", "other")),
            Question(CLIENT, Operation.READ, Resource("topic", "meters")),
        ]

    @pytest.fixture
    def foreign(self) -> Sequence[Question]:
        return [Question(Principal("ann"), Operation.WRITE, Resource("topic", "meters"))]


class TestInterceptor(InterceptorContract):
    @pytest.fixture
    def interceptor(self) -> OriginHeader:
        return OriginHeader()

    @pytest.fixture
    def principal(self) -> Principal:
        return CLIENT

    @pytest.fixture
    def samples(self) -> Sequence[Columns]:
        return [Columns([b"21.5", None], [b"kitchen", None])]


@pytest.mark.asyncio
async def test_lines_become_records(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_broker(
        tmp_path,
        plugins={"line": lakemq_line.plugin},
        config='[plugins.line]\nport = 0\ntopics = ["meters"]\n',
        now_ms=clock,
    ) as running:
        await running.broker.create_topic("meters", partitions=1)
        host, _, port = running.addresses["line"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PUT meters kitchen 21.5\nPUT other - x\n")
        assert await reader.readline() == b"OK 0 0\n"
        assert (await reader.readline()).startswith(b"ERR NOT_AUTHORIZED")
        writer.close()
        (record,) = await running.records("meters")
    assert (record.key, record.value, record.timestamp_ms) == (b"kitchen", b"21.5", clock())
    assert dict(record.headers)["line-client"]
