"""LakeMQ: one broker for the whole road from a device to a lakehouse table.

`import lakemq` is the Python SDK: `lakemq.connect(...)` blocks, `lakemq.Client(...)` is asyncio.
The SDK is loaded on first use of one of its names (PEP 562): `lakemq.node` needs no client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakemq.plugins.native.sdk import *  # noqa: F403
    from lakemq.spark_plugin.notebook.topics import spark as spark
    from lakemq.spark_plugin.union.read import read as read

__version__ = "0.1.0"

_SDK = "lakemq.plugins.native.sdk"
_OF_SPARK = {
    "read": "lakemq.spark_plugin.union.read",
    "spark": "lakemq.spark_plugin.notebook.topics",
}


def __getattr__(name: str) -> object:
    """A public name of the SDK, `read`, `spark`, or `__all__`, which lists the SDK's."""
    if name in _OF_SPARK:
        try:
            return getattr(import_module(_OF_SPARK[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "lakemq.spark_plugin":
                raise
            raise AttributeError(f"lakemq.{name} needs more: pip install 'lakemq[spark]'") from None
    if name == "__all__" or not name.startswith("_"):
        sdk = import_module(_SDK)
        if name == "__all__" or name in sdk.__all__:
            value: object = getattr(sdk, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(_SDK).__all__})
