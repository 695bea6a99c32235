"""Goal: a package is imported again alone, and its old modules can come back."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import PluginError
from lakemq.plugin_reload.fresh_code import FreshCode, own_package, package_of


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in a namespace that another distribution shares."""
    for name in ("limits", "other"):
        (tmp_path / "fresh_space" / name).mkdir(parents=True)
        (tmp_path / "fresh_space" / name / "__init__.py").write_text("")
    made = tmp_path / "fresh_space" / "limits"
    (made / "rules.py").write_text("most = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("limits.rules", "limits", "other"):
        importlib.import_module(f"fresh_space.{name}")
    for name in [each for each in sys.modules if each.partition(".")[0] == "fresh_space"]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return made


def test_the_package_in_a_namespace_is_a_plugins_own(limits: Path) -> None:
    assert package_of("fresh_space.limits.rules") == "fresh_space.limits"
    assert package_of("lonely") == "lonely"
    entry = EntryPoint("x", "lakemq.plugins.mqtt.plugin", "lakemq.plugins")
    with pytest.raises(PluginError, match="plugin x is a part of LakeMQ"):
        own_package("x", entry)


def test_old_modules_come_back_and_others_never_went(limits: Path) -> None:
    rules, other = sys.modules["fresh_space.limits.rules"], sys.modules["fresh_space.other"]
    (limits / "rules.py").write_text("most = 22\n")
    code = FreshCode("fresh_space.limits")
    assert importlib.import_module("fresh_space.limits.rules").most == 22
    assert sys.modules["fresh_space.other"] is other
    code.restore()
    import fresh_space  # type: ignore[import-not-found]

    assert fresh_space.limits.rules is rules is sys.modules["fresh_space.limits.rules"]
