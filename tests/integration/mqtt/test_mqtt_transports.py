"""Goal: MQTT over TLS, mutual TLS, WebSocket, unix socket and behind a proxy, with clients of
others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from pydantic import ValidationError
from websockets.asyncio.client import connect as ws_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from lakemq.broker_core.api.errors import ConfigError, NotAuthenticated, StartupError
from lakemq.broker_core.api.types import Credentials, Principal
from lakemq.broker_core.security.authn.certificates import CertificateAuthenticator, subject_parts
from lakemq.broker_core.security.settings import CertificateSettings
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.server.tls import alternative_names, subject_of
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import Connack, Connect, Packet, Publish, Subscribe
from lakemq.plugins.mqtt.wire.packets import Filter as TopicFilter
from tests.support.mqtt.certificates import Authority
from tests.support.mqtt.memory_broker import MemoryBroker, MqttServer, running_server
from tests.support.mqtt.raw_clients import NotingBroker

WAIT_S = 30
CONNECT = encode(Connect("raw"), 4)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> dict[str, str]:
    certificate, key = authority.sign("/CN=localhost", "server")
    return {"tls_cert": str(certificate), "tls_key": str(key)}


BY_CERTIFICATE = CertificateAuthenticator(CertificateSettings(kind="certificate"))


class CertificateBroker(NotingBroker):
    """Makes users of certificates."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        anonymous = await super().authenticate(credentials)
        return await BY_CERTIFICATE.authenticate(credentials) or anonymous


def round_trip(
    port: int | str, *, transport: str = "tcp", context: ssl.SSLContext | None = None
) -> list[bytes]:
    """paho subscribes, publishes at all QoS, and returns what it got."""
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        protocol=paho.MQTTv5,
        transport=transport,  # type: ignore[arg-type]
    )
    got: queue.Queue[bytes] = queue.Queue()
    ready: queue.Queue[Any] = queue.Queue()
    client.on_message = lambda c, u, message: got.put(message.payload)
    client.on_subscribe = lambda *_: ready.put(1)
    if context is not None:
        client.tls_set_context(context)
    if transport == "unix":
        client.connect(str(port))
    else:
        client.connect("127.0.0.1", int(port))
    client.loop_start()
    try:
        client.subscribe("t/#", 2)
        ready.get(timeout=WAIT_S)
        for qos in range(3):
            client.publish(f"t/{qos}", b"x" * 20_000 + bytes((qos,)), qos).wait_for_publish(WAIT_S)
        return sorted(got.get(timeout=WAIT_S)[-1:] for _ in range(3))
    finally:
        client.disconnect()
        client.loop_stop()


ALL = [b"\0", b"\1", b"\2"]


def listener(**settings: Any) -> dict[str, Any]:
    return {"tcp": False, "listeners": [{"name": "other", "port": 0, **settings}]}


async def with_server(
    script: Callable[[MqttServer], Any], broker: MemoryBroker | None = None, **settings: Any
) -> Any:
    async with running_server(broker, **listener(**settings)) as (server, _, _):
        return await asyncio.to_thread(script, server)


# -- TCP and TLS


async def test_tcp() -> None:
    """5.0 [MQTT-4.2-1], 3.1.1 [MQTT-7.1.1-1]"""
    assert await with_server(lambda server: round_trip(server.port("other"))) == ALL


async def test_tls(authority: Authority, server_files: dict[str, str]) -> None:
    context = authority.client_context()
    got = await with_server(
        lambda server: round_trip(server.port("other"), context=context), **server_files
    )
    assert got == ALL


async def test_mutual_tls_names_the_user(
    authority: Authority, server_files: dict[str, str], tmp_path: Path
) -> None:
    broker = CertificateBroker()
    mutual = {"tls_ca": str(authority.certificate), "client_certificate": "required"}
    device = authority.client_context(authority.sign("/CN=dev,ice-1/O=Acme", "device"))
    stranger = Authority(tmp_path, "stranger")
    stranger_pair = stranger.sign("/CN=device-1", "stranger-device")
    unknown = authority.client_context(stranger_pair)

    settings = listener(**server_files, **mutual)
    async with running_server(broker, **settings) as (server, _, _):
        port = server.port("other")
        assert await asyncio.to_thread(round_trip, port, context=device) == ALL
        for refused in (unknown, authority.client_context()):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=refused)
                writer.write(CONNECT)
                if await asyncio.wait_for(reader.read(), WAIT_S) == b"":
                    raise ConnectionError
    assert {each.certificate_subject for each in broker.shown} == {"O=Acme,CN=dev\\,ice-1"}
    principal = await CertificateAuthenticator(
        CertificateSettings(kind="certificate")
    ).authenticate(broker.shown[0])
    assert principal is not None
    assert principal.name == "dev,ice-1"


async def test_the_authenticator_judges_certificates_alone() -> None:
    authenticator = BY_CERTIFICATE
    assert await authenticator.authenticate(Credentials("mqtt", "c", "127.0.0.1")) is None
    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(
            Credentials("mqtt", "c", "127.0.0.1", certificate_subject="O=Acme")
        )


def test_subjects_keep_their_commas() -> None:
    subject = subject_of({"subject": ((("commonName", "a,b=c\\"),), (("organizationName", "O"),))})
    assert subject == "O=O,CN=a\\,b\\=c\\\\"
    assert subject_parts(subject) == [("O", "O"), ("CN", "a,b=c\\")]
    names = {"subjectAltName": (("DNS", "d.acme.org"), ("URI", "spiffe://acme/d"))}
    assert alternative_names(names) == ("DNS:d.acme.org", "URI:spiffe://acme/d")
    assert alternative_names(None) == ()
    assert subject_of({}) is None
    assert subject_of(None) is None


async def test_a_renewed_certificate_is_taken_into_use(
    authority: Authority, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"live.{name}" for name in ("tls_cert", "tls_key")}

    def install(common: str) -> None:
        pair = authority.sign(f"/CN={common}", common)
        for source, target in zip(pair, files.values(), strict=True):
            shutil.copy(source, tmp_path / "next")
            os.replace(tmp_path / "next", target)

    async def shown(port: int) -> str:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=authority.client_context()
        )
        certificate = writer.get_extra_info("peercert")
        writer.close()
        return subject_of(certificate) or ""

    install("first")
    settings = listener(**{name: str(file) for name, file in files.items()})
    async with running_server(**settings) as (server, _, _):
        certificates = server.listeners[0]._tls
        assert certificates is not None
        port = server.port("other")
        assert await shown(port) == "CN=first"
        assert not certificates.refresh()
        files["tls_key"].write_text("half written")
        assert not certificates.refresh()
        assert await shown(port) == "CN=first"
        install("second")
        assert certificates.refresh()
        assert await shown(port) == "CN=second"


async def test_wrong_files_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, _ = authority.sign("/CN=a", "a")
    _, other_key = authority.sign("/CN=b", "b")
    for key in (other_key, tmp_path / "absent"):
        with pytest.raises(ConfigError, match="a.pem"):
            async with running_server(**listener(tls_cert=str(certificate), tls_key=str(key))):
                pass


# -- unix socket


async def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"

    def script(server: MqttServer) -> list[bytes]:
        assert server.listeners[0].addresses() == [f"unix:{path}"]
        assert path.stat().st_mode & 0o777 == 0o600
        return round_trip(str(path), transport="unix")

    settings = {"transport": "unix", "path": str(path), "unix_mode": 0o600}
    broker = CertificateBroker()
    assert await with_server(script, broker, **settings) == ALL
    assert not path.exists()
    assert broker.shown[0].peer_host == "unix"


# -- PROXY protocol


async def connack_of(port: int, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(reader.read(4), WAIT_S)
    finally:
        writer.close()


async def test_the_address_behind_a_proxy() -> None:
    broker = CertificateBroker()
    header = b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n"
    async with running_server(broker, **listener(proxy_from=["127.0.0.0/8"])) as (server, _, _):
        port = server.port("other")
        assert await connack_of(port, header + CONNECT) == b"\x20\2\0\0"
        assert await connack_of(port, header[:9], header[9:] + CONNECT[:5], CONNECT[5:]) != b""
        assert await connack_of(port, CONNECT) == b""
        assert server.hub.counters.packets_invalid == 1
    assert [each.peer_host for each in broker.shown] == ["203.0.113.7"] * 2


async def test_nobody_but_the_proxy_may_tell_addresses() -> None:
    async with running_server(**listener(proxy_from=["10.0.0.5"])) as (server, _, _):
        header = b"PROXY TCP4 127.0.0.1 10.0.0.1 1 2\r\n"
        with pytest.raises(ConnectionError):
            assert await connack_of(server.port("other"), header + CONNECT) == b""
            raise ConnectionError  # closed before or after the first byte, either will do


# -- WebSocket


async def test_websocket_with_paho() -> None:
    got = await with_server(
        lambda server: round_trip(server.port("other"), transport="websockets"),
        transport="websocket",
    )
    assert got == ALL


async def test_secure_websocket_with_paho(
    authority: Authority, server_files: dict[str, str]
) -> None:
    context = authority.client_context()
    got = await with_server(
        lambda server: round_trip(server.port("other"), transport="websockets", context=context),
        transport="websocket",
        **server_files,
    )
    assert got == ALL


def decoded(*frames: bytes | str) -> list[Packet]:
    decoder = Decoder(1 << 20, version=4)
    return [packet for frame in frames for packet in decoder.feed(frame)]  # type: ignore[arg-type]


async def test_packets_and_frames_need_not_align() -> None:
    """5.0 [MQTT-6.0.0-2] [MQTT-6.0.0-4], 3.1.1 [MQTT-6.0.0-2] [MQTT-6.0.0-4]"""
    stream = CONNECT + encode(Subscribe(1, (TopicFilter("t"),)), 4)
    stream += encode(Publish("t", b"one"), 4) + encode(Publish("t", b"two"), 4)
    async with running_server(**listener(transport="websocket")) as (server, _, _):
        url = f"ws://127.0.0.1:{server.port('other')}/mqtt"
        for size in (1, 7, len(stream)):
            async with ws_connect(url, subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
                assert client.subprotocol == "mqtt"
                for start in range(0, len(stream), size):
                    await client.send(stream[start : start + size])
                packets: list[Packet] = []
                while len(packets) < 4:
                    packets += decoded(await asyncio.wait_for(client.recv(), WAIT_S))
                assert [type(each).__name__ for each in packets] == [
                    "Connack",
                    "Suback",
                    "Publish",
                    "Publish",
                ]
        pieces = [stream[start : start + 9] for start in range(0, len(stream), 9)]
        async with ws_connect(url, subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
            await client.send(pieces)  # one message in several frames
            assert isinstance(decoded(await client.recv())[0], Connack)


async def test_text_frames_close_the_connection() -> None:
    """5.0 [MQTT-6.0.0-1], 3.1.1 [MQTT-6.0.0-1]"""
    async with running_server(**listener(transport="websocket")) as (server, _, _):
        url = f"ws://127.0.0.1:{server.port('other')}/mqtt"
        async with ws_connect(url, subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
            await client.send("text")
            with pytest.raises(ConnectionClosed) as caught:
                await asyncio.wait_for(client.recv(), WAIT_S)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1003


@pytest.mark.parametrize(
    ("path", "subprotocols", "origin", "status"),
    [
        ("/other", ["mqtt"], None, 404),
        ("/mqtt", None, None, 400),
        ("/mqtt", ["mqttv3.1"], None, 400),
        ("/mqtt", ["mqtt"], "https://elsewhere.example", 403),
        ("/mqtt?token=1", ["chat", "mqtt"], "https://friend.example", 101),
        ("/mqtt", ["mqtt"], None, 101),
    ],
)
async def test_who_may_open_a_websocket(
    path: str, subprotocols: Any, origin: Any, status: int
) -> None:
    """5.0 [MQTT-6.0.0-3], 3.1.1 [MQTT-6.0.0-3]"""
    settings = listener(transport="websocket", origins=["https://friend.example"])
    async with running_server(**settings) as (server, _, _):
        url = f"ws://127.0.0.1:{server.port('other')}{path}"
        try:
            async with ws_connect(url, subprotocols=subprotocols, origin=origin):
                found = 101
        except InvalidStatus as error:
            found = error.response.status_code
        assert found == status


async def test_a_page_of_the_same_host_may_connect() -> None:
    async with running_server(**listener(transport="websocket")) as (server, _, _):
        host = f"127.0.0.1:{server.port('other')}"
        async with ws_connect(
            f"ws://{host}/mqtt",
            subprotocols=["mqtt"],
            origin=f"http://{host}",  # type: ignore[list-item,arg-type]
        ) as client:
            assert client.subprotocol == "mqtt"


async def test_what_is_no_websocket_is_turned_away() -> None:
    async with running_server(**listener(transport="websocket")) as (server, _, _):
        port = server.port("other")
        assert (await connack_of(port, b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n"))[:4] == b"HTTP"
        assert await connack_of(port, CONNECT + b"\r\n" * 3) == b"HTTP"
        assert await connack_of(port, b"GET / HTTP/1.1\r\n" + b"x" * 100_000) == b"HTTP"
        assert not server.hub.connections


async def test_disconnecting_closes_the_websocket() -> None:
    async with running_server(**listener(transport="websocket")) as (server, _, _):
        url = f"ws://127.0.0.1:{server.port('other')}/mqtt"
        async with ws_connect(url, subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
            await client.send(CONNECT + b"\xe0\0")
            assert isinstance(decoded(await client.recv())[0], Connack)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(client.recv(), WAIT_S)


# -- all listeners


async def test_clients_of_different_listeners_meet(tmp_path: Path) -> None:
    async with running_server(
        listeners=[
            {"name": "ws", "transport": "websocket", "port": 0},
            {"name": "local", "transport": "unix", "path": str(tmp_path / "s")},
        ]
    ) as (server, _, port):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(CONNECT + encode(Subscribe(1, (TopicFilter("t"),)), 4))
        assert len(await reader.readexactly(9)) == 9
        url = f"ws://127.0.0.1:{server.port('ws')}/mqtt"
        async with ws_connect(url, subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
            await client.send(encode(Connect("w"), 4) + encode(Publish("t", b"x"), 4))
            assert await reader.readexactly(6) == b"\x30\4\0\1tx"
        assert await connack_of(port, encode(Connect("t"), 4)) == b"\x20\2\0\0"
        writer.close()


async def test_a_taken_port_is_named() -> None:
    async with running_server() as (_, _, port):
        with pytest.raises(StartupError, match=f"127.0.0.1:{port}"):
            async with running_server(port=port):
                pass


async def test_connections_are_bounded_per_listener() -> None:
    async with running_server(**listener(connections_max=1)) as (server, _, _):
        port = server.port("other")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT)
        assert await reader.readexactly(4) == b"\x20\2\0\0"
        with contextlib.suppress(ConnectionError):
            assert await connack_of(port, CONNECT) == b""
        writer.close()


@pytest.mark.parametrize("wrong", [
    {"tls_cert": "a"}, {"client_certificate": "required"}, {"proxy_from": ["nowhere"]},
    {"proxy_from": ["10.0.0.1"], "tls_cert": "a", "tls_key": "b"},
    {"transport": "unix", "proxy_from": ["10.0.0.1"]}, {"name": "mqtt"}, {"name": "No Name"},
])  # fmt: skip
def test_settings_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MqttSettings.model_validate({"listeners": [{"name": "other", **wrong}]})
