"""LakeMQ: one broker for the whole road from a device to a lakehouse table.

`import lakemq` is the Python SDK: `lakemq.connect(...)` blocks, `lakemq.Client(...)` is asyncio.
"""

from plugins.native.sdk import *  # noqa: F403  the SDK's public names are its `__all__`
from plugins.native.sdk import __all__ as _sdk

__all__ = [*_sdk]
