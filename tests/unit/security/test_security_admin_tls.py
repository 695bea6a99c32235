"""Goal: the HTTP admin shows no password to the network unless it is told to."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from lakemq.broker_core.api.errors import ConfigError
from lakemq.plugins.admin.config import AdminSettings
from lakemq.plugins.admin.http.tls import tls_of


def test_other_machines_need_tls_or_a_word() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "broker.acme.org"):
        with pytest.raises(ConfigError, match=f"host {host} is reached by other machines"):
            tls_of(AdminSettings(), host)
        assert tls_of(AdminSettings(insecure=True), host) is None
    for host in ("127.0.0.1", "localhost", "::1"):
        assert tls_of(AdminSettings(), host) is None


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "server.crt"
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"server\.crt"):
        tls_of(AdminSettings(tls_cert=str(path), tls_key=str(path)), "127.0.0.1")
    with pytest.raises(ValidationError, match="must be set together"):
        AdminSettings(tls_cert="c")
