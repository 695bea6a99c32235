"""Goal: no node starts whose clients could show their certificates to the MetaService, unless its
operator says so."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from lakemq.cli.commands import app

Issuer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def authority(name: str, issuer: Issuer | None = None) -> Issuer:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name.from_rfc4514_string(f"CN={name}")
    begin = datetime.datetime(2020, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    return made, key


def pem(file: Path, *issuers: Issuer) -> str:
    file.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each, _ in issuers))
    return str(file)


def checked(folder: Path, members: str, clients: str, more: str = "") -> str:
    """What `config check` says of it; empty: nothing."""
    config = folder / "lakemq.toml"
    for name in "ck":
        (folder / name).touch()
    files = f'tls_cert = "{folder}/c"\ntls_key = "{folder}/k"\ntls_ca = "{clients}"\n'
    for section in (
        f"[plugins.native]\n{files}",
        f'[[plugins.mqtt.listeners]]\nname = "tls"\nport = 0\n{files}'
        'client_certificate = "required"\n',
    ):
        own = f'tls_cert = "{folder}/c"\ntls_key = "{folder}/k"\ntls_ca = "{members}"\n'
        tls = f"[meta]\n{own}{more}\n"
        config.write_text(tls + section)
        outcome = CliRunner().invoke(app, ["config", "check", "--config", str(config)])
        if outcome.exit_code:
            return outcome.output
    return ""


def test_an_authority_of_both_is_refused(tmp_path: Path) -> None:
    root, other = authority("acme"), authority("nodes")
    both = pem(tmp_path / "both.pem", other, root)
    told = checked(tmp_path, both, pem(tmp_path / "clients.pem", root))
    assert "tls_ca" in told and "CN=acme" in told and "ca_shared_with_clients" in told
    shared = "ca_shared_with_clients = true"
    assert not checked(tmp_path, both, str(tmp_path / "clients.pem"), shared)
    assert not checked(tmp_path, pem(tmp_path / "nodes.pem", other), str(tmp_path / "clients.pem"))


def test_an_authority_that_the_members_signed_is_refused(tmp_path: Path) -> None:
    """A device of an intermediate authority shows that too, and is valid to the members."""
    root = authority("acme")
    below = authority("acme devices", root)
    members = pem(tmp_path / "members.pem", root)
    assert "acme devices" in checked(tmp_path, members, pem(tmp_path / "clients.pem", below))
    clients = pem(tmp_path / "clients.pem", authority("acme"))  # of the same name, another key
    assert not checked(tmp_path, members, clients)


def test_a_shared_authority_does_not_go_with_nodes_of_any_name(tmp_path: Path) -> None:
    """Any device could join the group, and do everything then."""
    file = pem(tmp_path / "ca.pem", authority("acme"))
    shared = "ca_shared_with_clients = true\n"
    told = checked(tmp_path, file, file, shared + 'nodes = ["n1", "*"]')
    assert "meta.nodes" in told and "ca_shared_with_clients" in told
    assert not checked(tmp_path, file, file, shared + 'nodes = ["n*"]')
    other = pem(tmp_path / "other.pem", authority("others"))
    assert not checked(tmp_path, file, other, 'nodes = ["*"]')
