"""Goal: TLS and client certificates on the native listener; nothing goes over the network in plain
text by accident."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from opentelemetry.metrics import get_meter
from typer.testing import CliRunner

import lakemq
from lakemq.broker_core.api.errors import NotAuthenticated, UnknownTopic
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import ANONYMOUS, ClusterInfo, Principal, TopicInfo
from lakemq.broker_core.security.authn.certificates import CertificateAuthenticator, subject_parts
from lakemq.broker_core.security.settings import CertificateSettings
from lakemq.plugins.native.cli.commands import topic as topic_command
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.listener import NativeListener
from tests.support.node.node import PORTS_FREE, NodeProcess

_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates; all files lie in one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self._write(self.file, self._signed(self._name, self._key.public_key(), ca=True))

    def issue(self, name: str, organization: str = "Acme") -> tuple[Path, Path]:
        """Certificate and key for `name`, good for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        self._write(files[0], self._signed(subject, key.public_key(), ca=False))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool
    ) -> x509.Certificate:
        """With all extensions that OpenSSL's strict checks want, Python's default from 3.13 on."""
        now = datetime.datetime.now(datetime.UTC)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("broker")]
                ),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(authority, critical=False)
        )
        if ca:
            builder = builder.add_extension(_SIGNS, critical=True)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ca")


def node_with(folder: Path, settings: str) -> NodeProcess:
    listener = "[plugins.native]\nport = 0"
    return NodeProcess(folder, PORTS_FREE.replace(listener, f"{listener}\n{settings}"))


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    certificate, key = authority.issue("server")
    settings = f'tls_cert = "{certificate}"\ntls_key = "{key}"\ntls_ca = "{authority.file}"\n'
    with node_with(tmp_path_factory.mktemp("tls"), settings) as node:
        yield node


async def test_both_faces_and_groups_speak_tls(node: NodeProcess, authority: Authority) -> None:
    tls = lakemq.Tls(authority.file, *authority.issue("client"))
    async with lakemq.Client(node.native, tls=tls) as client:
        await client.create_topic("t", partitions=1)
        async with await client.producer() as producer:
            await producer.send("t", b"x")
        assert [each.value async for each in client.consume("t")] == [b"x"]


def test_the_blocking_face_and_a_group(node: NodeProcess, authority: Authority) -> None:
    tls = lakemq.Tls(authority.file, *authority.issue("client"), server_name="broker")
    with lakemq.connect(node.native, tls=tls, timeout_s=10) as client:
        client.create_topic("u", partitions=1)
        client.send("u", b"x")
        with client.subscribe("u", group="g") as consumer:
            assert next(iter(consumer)).value == b"x"


def test_the_command_line_takes_files_from_the_environment(
    node: NodeProcess, authority: Authority
) -> None:
    certificate, key = authority.issue("admin")
    run = CliRunner().invoke(
        topic_command,
        ["create", "made-by-command", "--bootstrap", node.native],
        env={
            "LAKEMQ_TLS_CA": str(authority.file),
            "LAKEMQ_TLS_CERT": str(certificate),
            "LAKEMQ_TLS_KEY": str(key),
        },
    )
    assert run.output.startswith("created made-by-command")


def test_who_does_not_belong_here_is_refused(
    node: NodeProcess, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "other")
    good = authority.issue("client")
    for tls in (
        None,
        lakemq.Tls(authority.file),
        lakemq.Tls(stranger.file, *good),
        lakemq.Tls(authority.file, *stranger.issue("client")),
        lakemq.Tls(authority.file, *good, server_name="elsewhere"),
    ):
        with (
            lakemq.connect(node.native, tls=tls, timeout_s=2) as client,
            pytest.raises(lakemq.Unavailable),
        ):
            client.topics()
    with pytest.raises(lakemq.InvalidRequest, match="missing.pem"):
        lakemq.connect(node.native, tls=lakemq.Tls(tmp_path / "missing.pem"))
    with pytest.raises(lakemq.InvalidRequest, match="come together"):
        lakemq.connect(node.native, tls=lakemq.Tls(certificate=good[0]))


def test_without_client_certificates_tls_alone(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    with (
        node_with(tmp_path, f'tls_cert = "{certificate}"\ntls_key = "{key}"\n') as node,
        lakemq.connect(node.native, tls=lakemq.Tls(authority.file), timeout_s=10) as client,
    ):
        assert client.create_topic("t").name == "t"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('host = "0.0.0.0"', "insecure = true"),
        ('tls_cert = "x.pem"', "tls_cert and tls_key must be set together"),
        ('tls_ca = "x.pem"', "tls_ca needs tls_cert"),
        ('tls_cert = "no.crt"\ntls_key = "no.key"', "tls_cert no.crt"),
        ('tls_cert = "{ca}"\ntls_key = "{ca}"', "with tls_key"),
    ],
)
def test_wrong_settings_are_one_clear_error(
    authority: Authority, tmp_path: Path, settings: str, said: str
) -> None:
    node = node_with(tmp_path, settings.replace("{ca}", str(authority.file)))
    with pytest.raises(AssertionError, match="did not get ready"):
        node.start()
    log = node.log_file.read_text()
    assert said in log and "Traceback" not in log


def test_insecure_is_taken_when_it_is_asked_for(tmp_path: Path) -> None:
    with node_with(tmp_path, 'host = "0.0.0.0"\ninsecure = true') as node:
        port = node.native.rpartition(":")[2]
        with lakemq.connect(f"127.0.0.1:{port}", timeout_s=10) as client:
            assert client.create_topic("t").name == "t"


class Witness:
    """Of the `Broker` port what `Describe` needs; keeps what clients showed."""

    cluster_id = node_id = "here"

    def __init__(self) -> None:
        self.shown: list[Credentials] = []

        self.groups = self.queues = self.transactions = self

    def configure(self, settings: object) -> None:
        """There are neither groups nor queues."""

    def topics(self) -> list[TopicInfo]:
        return []

    def topic(self, name: str) -> TopicInfo:
        raise UnknownTopic(name)

    def watch_topics(self, on_change: object) -> Callable[[], None]:
        return lambda: None

    watch_nodes = watch_topics
    watch_serving = watch_topics

    def in_touch(self) -> bool:
        return True

    async def describe_cluster(self) -> ClusterInfo:
        return ClusterInfo("here", "here", (), "", (), 0, ())

    async def authenticate(self, credentials: Credentials) -> Principal:
        self.shown.append(credentials)
        return ANONYMOUS


async def test_the_broker_learns_the_subject(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    settings = NativeSettings(
        port=0, tls_cert=str(certificate), tls_key=str(key), tls_ca=str(authority.file)
    )
    witness = Witness()
    listener = NativeListener(witness, settings, get_meter("test"))  # type: ignore[arg-type]
    await listener.start()
    try:
        tls = lakemq.Tls(authority.file, *authority.issue("spark"))
        async with lakemq.Client(listener.addresses()[0], tls=tls) as client:
            await client.topics()
    finally:
        await listener.stop()
    (credentials,) = witness.shown
    assert dict(subject_parts(credentials.certificate_subject or ""))["CN"] == "spark"
    assert "Acme" in (credentials.certificate_subject or "")
    assert credentials.peer_host == "127.0.0.1"


async def test_the_common_name_is_the_user() -> None:
    judge = CertificateAuthenticator(CertificateSettings(kind="certificate"))
    shown = Credentials("native", "", "10.0.0.1", certificate_subject="CN=spark,O=Acme")
    principal = await judge.authenticate(shown)
    assert principal is not None and principal.name == "spark"
    assert await judge.authenticate(Credentials("native", "", "10.0.0.1")) is None
    with pytest.raises(NotAuthenticated, match="O=Acme lacks fields required by template '{CN}'"):
        await judge.authenticate(Credentials("native", "", "", certificate_subject="O=Acme"))
    assert subject_parts("O=Acme, CN=a") == [("O", "Acme"), ("CN", "a")]
    assert subject_parts("") == []


async def test_a_renewed_certificate_is_taken_into_use(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections see it; a key that does not fit the certificate changes nothing."""
    monkeypatch.setattr("lakemq.broker_core.api.tls_files.watched_files.LOOK_EVERY_S", 0.0)
    live = tmp_path / "live.crt", tmp_path / "live.key"

    def install(names: tuple[Path, Path]) -> None:
        for new, path in zip(names, live, strict=True):
            new_path = path.with_suffix(".new")
            new_path.write_bytes(new.read_bytes())
            new_path.replace(path)

    def shown(port: int) -> str:
        context = ssl.create_default_context(cafile=str(authority.file))
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            certificate = link.getpeercert() or {}
        return dict(part[0] for part in certificate["subject"])["commonName"]  # type: ignore[misc]

    install(authority.issue("first"))
    settings = NativeSettings(port=0, tls_cert=str(live[0]), tls_key=str(live[1]))
    listener = NativeListener(Witness(), settings, get_meter("test"))  # type: ignore[arg-type]
    await listener.start()
    try:
        port = int(listener.addresses()[0].rpartition(":")[2])
        assert await asyncio.to_thread(shown, port) == "first"
        install(authority.issue("second"))
        assert await asyncio.to_thread(shown, port) == "second"
        third = authority.issue("third")
        install((third[0], authority.issue("other")[1]))
        assert await asyncio.to_thread(shown, port) == "second"
        install(third)
        assert await asyncio.to_thread(shown, port) == "third"
    finally:
        await listener.stop()
