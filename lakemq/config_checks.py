"""Checks of a configuration across sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.configuration.config import Config
from lakemq.broker_core.plugin_host import LoadedPlugin
from lakemq.broker_core.security.authz.rule_book import RuleBook

if TYPE_CHECKING:
    from cryptography import x509

Place = tuple[str | int, ...]
"""Path of a section or setting in the configuration: names of tables, numbers in lists."""


def check_together(config: Config, plugins: Sequence[LoadedPlugin]) -> list[str]:
    """Warnings about valid settings that have no effect. Raises ConfigError for invalid
    combinations."""
    check_authorities(config, plugins)
    check_roles(config)
    void = RuleBook(config.security, lambda: None).rules.void()
    return [*([void] if void else []), *unknown_plugins(config, plugins)]


def unknown_plugins(config: Config, plugins: Sequence[LoadedPlugin]) -> list[str]:
    """Warnings about plugins that `interceptors.fail_open` names and that are not on."""
    known = {plugin.name for plugin in plugins}
    return [
        f"interceptors.fail_open names {name!r}, which is no plugin that is on"
        for name in config.interceptors.fail_open
        if name not in known
    ]


def check_roles(config: Config) -> None:
    """A broker that is no member must know members. Raises ConfigError."""
    if "meta" not in config.node.roles and not config.meta.join:
        raise config.source.error(
            ("meta", "join"),
            'it is empty: a node with roles = ["broker"] asks the members of the MetaService that '
            "are named there",
        )


def check_authorities(config: Config, plugins: Sequence[LoadedPlugin]) -> None:
    """An authority of clients must not be one of the members: anyone with a client certificate
    could join the Raft group. Raises ConfigError unless `meta.ca_shared_with_clients` is set."""
    meta = config.meta
    if meta.ca_shared_with_clients and "*" in meta.nodes:
        raise ConfigError(
            'meta.nodes has "*": with meta.ca_shared_with_clients any client could join as a node; '
            "name the nodes"
        )
    if not meta.tls_ca or meta.ca_shared_with_clients:
        return
    own = certificates(meta.tls_ca)
    for plugin in plugins:
        for setting, file in _client_authorities(plugin):
            for certificate in certificates(file):
                if any(_covers(each, certificate) for each in own):
                    raise ConfigError(
                        f"{setting}: {file} holds {certificate.subject.rfc4514_string()}, an "
                        f"authority of meta.tls_ca ({meta.tls_ca}) too: give clients an authority "
                        "of their own, or set meta.ca_shared_with_clients = true and name in "
                        "meta.nodes and meta.operators who may join and administer"
                    )


def _client_authorities(plugin: LoadedPlugin) -> Iterator[tuple[str, str]]:
    """(setting, file) of each `tls_ca` of a listener, which signs the certificates of clients.
    Sections without a port connect to others, and name the authority of those."""
    for place, section in sections(("plugins", plugin.name), plugin.settings):
        file = getattr(section, "tls_ca", "")
        if file and "port" in type(section).model_fields:
            yield ".".join(map(str, (*place, "tls_ca"))), file


def sections(place: Place, section: BaseModel) -> Iterator[tuple[Place, BaseModel]]:
    """A section and all tables in it, with their paths."""
    yield place, section
    for name in type(section).model_fields:
        value: Any = getattr(section, name)
        inner = enumerate(value) if isinstance(value, list) else [(None, value)]
        for number, each in inner:
            if isinstance(each, BaseModel):
                yield from sections((*place, name, *(() if number is None else (number,))), each)


def certificates(file: str) -> list[x509.Certificate]:
    """The certificates of a PEM file; none if it cannot be read, which its user reports."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(Path(file).read_bytes())
    except (OSError, ValueError):
        return []


def _covers(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Whether the certificate is that authority, or an intermediate signed by it, whose
    certificates the authority's clients accept too."""
    from cryptography.exceptions import InvalidSignature

    # The same key under another name or validity signs the same certificates.
    if authority == certificate or authority.public_key() == certificate.public_key():
        return True
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
