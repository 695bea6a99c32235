"""How the SDK opens a channel: plain, or TLS with or without a certificate of its own."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.addresses import Bootstrap
from lakemq.plugins.native.sdk.net.channels import async_channel, blocking_channel
from lakemq.plugins.native.sdk.net.login import Login

_UNKNOWN_HOST: Final = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS towards the broker. Files are PEM."""

    ca: str | Path | None = None
    """Certificates of the authorities that may have signed the broker's; None: those that gRPC
    brings."""
    certificate: str | Path | None = None
    """This client's certificate chain, for a broker that asks for one."""
    key: str | Path | None = None
    server_name: str | None = None
    """What the broker's certificate must name in place of the host that is connected to."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Internal. Raises InvalidRequest, naming the file that can't be read."""
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequest("tls: certificate and key come together")
        return grpc.ssl_channel_credentials(
            _read(self.ca), _read(self.key), _read(self.certificate)
        )

    def options(self) -> list[tuple[str, int | str]]:
        """Internal: channel options."""
        if self.server_name is None:
            return [*wire.CHANNEL_OPTIONS]
        return [*wire.CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", self.server_name)]


def _read(file: str | Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"tls: cannot read {file}: {error.strerror}") from None


def target_of(bootstrap: str) -> str:
    """What gRPC connects to: one address as it is; of several (`host:port`, commas between) the
    first that answers. InvalidRequest names what is no address, or a host that there is not."""
    addresses = bootstrap.split(",")
    if len(addresses) == 1:
        if isinstance(bootstrap, Bootstrap):
            _check_host(bootstrap)
        return addresses[0]
    found: dict[int, list[str]] = {socket.AF_INET: [], socket.AF_INET6: []}
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"bootstrap {address!r}: {error}") from None
        for family, *_, place in infos:
            name = str(place[0])
            text = f"[{name}]" if family == socket.AF_INET6 else name
            found.setdefault(family, []).append(f"{text}:{int(port)}")
    if found[socket.AF_INET]:
        return "ipv4:" + ",".join(dict.fromkeys(found[socket.AF_INET]))
    return "ipv6:" + ",".join(dict.fromkeys(found[socket.AF_INET6]))


def _check_host(address: str) -> None:
    """InvalidRequest: the host is unknown. What may pass, such as a resolver without an answer,
    is left to gRPC, which tries again."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise InvalidRequest(f"bootstrap {address!r}: {error}") from None
    except socket.gaierror as error:
        if error.errno in _UNKNOWN_HOST:
            raise InvalidRequest(f"bootstrap {address!r}: no such host: {error.strerror}") from None


def open_channel(bootstrap: str, tls: Tls | None, login: Login | None = None) -> grpc.Channel:
    """A blocking channel to the brokers of `bootstrap`. Raises InvalidRequest when `login` would
    show a secret on the way."""
    if login is not None:
        for address in bootstrap.split(","):
            login.check(address.strip(), tls is not None)
    target = target_of(bootstrap)
    if tls is None:
        channel = grpc.insecure_channel(target, options=wire.CHANNEL_OPTIONS)
    else:
        channel = grpc.secure_channel(target, tls.credentials(), options=tls.options())
    return blocking_channel(channel, bootstrap)


def open_async_channel(
    bootstrap: str, tls: Tls | None, login: Login | None = None
) -> grpc.aio.Channel:
    """As `open_channel`, for asyncio."""
    if login is not None:
        for address in bootstrap.split(","):
            login.check(address.strip(), tls is not None)
    target = target_of(bootstrap)
    if tls is None:
        channel = grpc.aio.insecure_channel(target, options=wire.CHANNEL_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(target, tls.credentials(), options=tls.options())
    return async_channel(channel, bootstrap)
