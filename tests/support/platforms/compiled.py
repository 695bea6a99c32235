"""Tests where modules are compiled (`make test-compiled`): those that replace parts of them are
skipped, for compiled code calls its own functions directly and has its constants in it. What a
module assigns and does not call `Final` may be replaced: it is looked up each time."""

from __future__ import annotations

import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest

REASON = "replaces a part of compiled code"


def is_compiled(target: object) -> bool:
    """Whether a module, class or object is of a module of ours that is compiled."""
    if isinstance(target, ModuleType):
        name = target.__name__
    else:
        name = target.__module__ if isinstance(target, type) else type(target).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name.startswith("lakemq.") and file.endswith(tuple(EXTENSION_SUFFIXES))


def may_be_replaced(target: object, name: str) -> bool:
    """Whether what uses this name of a module, class or object sees what is put in its place."""
    if not is_compiled(target):
        return True
    if not isinstance(target, ModuleType):
        return False
    source = Path(str(target.__file__)).with_name(f"{target.__name__.rpartition('.')[2]}.py")
    return re.search(rf"^{name}: (?!Final)\w+ = ", source.read_text(), re.MULTILINE) is not None


def skip_what_replaces_compiled_code() -> None:
    """From now on, skip a test once `monkeypatch` would replace a part of compiled code."""
    setattr_ = pytest.MonkeyPatch.setattr

    def checked(self: pytest.MonkeyPatch, target: Any, *more: Any, **options: Any) -> None:
        owner, name = target, more[0] if more else ""
        if isinstance(target, str):
            place, _, name = target.rpartition(".")
            owner = resolve_name(place)
        if not may_be_replaced(owner, name):
            pytest.skip(f"{REASON}: {target} {name}")
        setattr_(self, target, *more, **options)

    pytest.MonkeyPatch.setattr = checked  # type: ignore[method-assign, assignment]
