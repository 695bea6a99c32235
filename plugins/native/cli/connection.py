"""How commands open a client."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from lakemq.broker_core.api.command_line import BrokerOptions, fail, secret
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.plugins.native.sdk import SyncClient, Tls
from lakemq.plugins.native.sdk.net.login import Login, login_of


class Terminated(BaseException):
    """SIGTERM, where Ctrl-C would be a KeyboardInterrupt."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends what runs inside as Ctrl-C does, with exit code 143."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def client_of(broker: BrokerOptions) -> Iterator[SyncClient]:
    """A client as the options say, whose errors end the command with one line."""
    try:
        with SyncClient(
            broker.bootstrap, timeout_s=10, tls=tls_of(broker), login=login_for(broker)
        ) as client:
            yield client
    except LakeMQError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except Terminated:
        raise typer.Exit(128 + signal.SIGTERM) from None


def tls_of(broker: BrokerOptions) -> Tls | None:
    """TLS if one of its files is named."""
    files = (broker.tls_ca or None, broker.tls_cert or None, broker.tls_key or None)
    return Tls(*files) if any(files) else None


def login_for(broker: BrokerOptions) -> Login | None:
    """Who the options and the environment say; None: an anonymous client."""
    mechanism = secret("MECHANISM") or "PLAIN"
    return login_of(
        secret("TOKEN"),
        broker.username or None,
        secret("PASSWORD"),
        mechanism,  # type: ignore[arg-type]  # checked by the SDK
    )
