"""How the SDK opens a channel: plain, or TLS with or without a certificate of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from broker_core.api.errors import InvalidRequest
from plugins.native.sdk import wire
from plugins.native.sdk.login import Login


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
        """Raises InvalidRequest, naming the file that can't be read."""
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequest("tls: certificate and key come together")
        return grpc.ssl_channel_credentials(
            _read(self.ca), _read(self.key), _read(self.certificate)
        )

    def options(self) -> list[tuple[str, int | str]]:
        """Channel options."""
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


def open_channel(bootstrap: str, tls: Tls | None, login: Login | None = None) -> grpc.Channel:
    """Raises InvalidRequest when `login` would show a secret on the way."""
    if login is not None:
        login.check(bootstrap, tls is not None)
    if tls is None:
        return grpc.insecure_channel(bootstrap, options=wire.CHANNEL_OPTIONS)
    return grpc.secure_channel(bootstrap, tls.credentials(), options=tls.options())


def open_async_channel(
    bootstrap: str, tls: Tls | None, login: Login | None = None
) -> grpc.aio.Channel:
    if login is not None:
        login.check(bootstrap, tls is not None)
    if tls is None:
        return grpc.aio.insecure_channel(bootstrap, options=wire.CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(bootstrap, tls.credentials(), options=tls.options())
