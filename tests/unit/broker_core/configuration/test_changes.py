"""Goal: a running node takes what it can of a changed section, and knows what it can't."""

from __future__ import annotations

from typing import Self

import pytest
from pydantic import Field, SecretStr, model_validator

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.settings import PluginSettings, Reloadable, ReloadableWhileOn, Unlimited
from lakemq.broker_core.configuration.changes import masked, merged


class LineSettings(PluginSettings):
    port: int = 7
    """A port."""
    lines_max: Reloadable[int] = Field(default=10, ge=1)
    """Most lines."""
    age_max_ms: Reloadable[Unlimited] = -1
    """Longest."""
    server: str = ""
    """Another one."""
    redirect: Reloadable[bool] = False
    """To the other one."""
    password: str = ""
    """A secret."""
    hidden: SecretStr = SecretStr("")
    """Another."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.redirect and not self.server:
            raise ValueError("redirect needs server")
        return self


def test_what_is_reloadable_is_taken_and_the_rest_named() -> None:
    running = LineSettings()
    section, changes = merged("line", running, LineSettings(port=8, lines_max=3, age_max_ms=5))
    assert section == LineSettings(port=7, lines_max=3, age_max_ms=5)
    assert [(each.setting, each.before, each.after, each.restart) for each in changes] == [
        ("line.port", 7, 8, True), ("line.lines_max", 10, 3, False),
        ("line.age_max_ms", -1, 5, False),
    ]  # fmt: skip
    assert merged("line", section, section).changes == []


class TlsSettings(PluginSettings):
    cert: ReloadableWhileOn[str] = ""
    """A file; empty: no TLS."""
    ratio: ReloadableWhileOn[float] = 0.0
    """A share; 0: off."""


@pytest.mark.parametrize(
    ("before", "after", "restart"), [("a", "b", False), ("", "b", True), ("a", "", True)]
)
def test_what_is_on_changes_and_is_turned_neither_on_nor_off(
    before: str, after: str, restart: bool
) -> None:
    section, changes = merged("tls", TlsSettings(cert=before), TlsSettings(cert=after))
    assert section.cert == (before if restart else after)
    assert [(each.setting, each.restart) for each in changes] == [("tls.cert", restart)]
    assert merged("tls", TlsSettings(ratio=0.1), TlsSettings(ratio=1.0)).section.ratio == 1.0
    assert merged("tls", TlsSettings(), TlsSettings(ratio=1.0)).section.ratio == 0.0


def test_a_section_that_no_part_takes_needs_a_restart() -> None:
    running = LineSettings()
    section, changes = merged("line", running, LineSettings(lines_max=3), takes=False)
    assert section is running
    assert [each.restart for each in changes] == [True]


def test_what_does_not_go_with_settings_that_stay_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"line: redirect needs server, as long as line\.server"):
        merged("line", LineSettings(), LineSettings(server="b", redirect=True))
    taken = merged("line", LineSettings(server="a"), LineSettings(server="b", redirect=True))
    assert taken.section == LineSettings(server="a", redirect=True)


def test_secrets_are_not_shown() -> None:
    shown = masked(LineSettings(password="pass-1", hidden=SecretStr("pass-2"), server="s"))
    assert "pass-1" not in str(shown) and "pass-2" not in str(shown)
    assert shown["server"] == "s"
