"""Imports a plugin's package once more, beside the modules that are in use, which can come back."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from lakemq.broker_core.api.errors import PluginError
from lakemq.broker_core.api.hooks import ENTRY_POINT_GROUP
from lakemq.broker_core.plugin_host import PluginPoint


def package_of(module: str) -> str:
    """The outermost package on the way to a module that is imported and is no namespace: what a
    plugin calls its own. The module itself, where it is in none."""
    parts = module.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        # A namespace package has no file, and other distributions may have parts of it.
        if getattr(sys.modules.get(name), "__file__", None):
            return name
    return module


def installed_now(name: str, known: PluginPoint) -> PluginPoint:
    """The plugin's entry point as the environment has it now; `known` where it has none, such as
    one that a test has given. Reads files."""
    importlib.invalidate_caches()
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    return next(iter(found), known)


class FreshCode:
    """Takes a package's modules out of `sys.modules`, so that the next import reads its files.

    Holders of objects of the old modules go on with them. Until `restore` or the end, an
    import inside a function of the old code finds the new modules.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._old = self._taken()

    def _taken(self) -> dict[str, ModuleType]:
        inside = f"{self._package}."
        names = [
            name for name in list(sys.modules) if name == self._package or name.startswith(inside)
        ]
        return {name: sys.modules.pop(name) for name in names}

    def restore(self) -> None:
        """Have the old modules found again, in place of what was imported since."""
        self._taken()
        sys.modules.update(self._old)
        parent, _, last = self._package.rpartition(".")
        # `import a.b` finds b as an attribute of a, which the import has set to the new one.
        if parent in sys.modules and self._package in self._old:
            setattr(sys.modules[parent], last, self._old[self._package])


def own_package(name: str, point: PluginPoint) -> str:
    """What is imported again for a plugin. Raises PluginError: nothing is."""
    if not isinstance(point, EntryPoint):
        raise PluginError(f"plugin {name}: it has no entry point: only a restart takes new code")
    package = package_of(point.module)
    if package.partition(".")[0] == "lakemq":
        raise PluginError(f"plugin {name} is a part of LakeMQ: its code changes with the node's")
    return package
