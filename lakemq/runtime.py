"""How Python is set up for a process that serves: event loop, garbage collector, threads.

What each is worth is in `docs/performance-mqtt.md`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from lakemq.broker_core.api.errors import ConfigError

GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Records and packets make and drop many objects in each turn of the loop, and hardly a cycle; with
Python's own thresholds a quarter of a busy broker's time goes into looking for cycles."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread whose fsync has ended waits at most for a busy event loop; Python's own is
ten times as long, which every acknowledgement would feel."""

START_THRESHOLDS: Final = (500_000, 20, 50)
"""Until a node is ready: nearly all that its start imports and makes stays."""

LARGE_BLOCK_BYTES: Final = 16 * 1024 * 1024
"""Answers and batches of up to this size are allocated from what was freed before."""

LATER: Final = ("numpy", "lakemq.telemetry.prometheus")
"""What records and scrapes need and a start does not; functions that use it import it."""


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop `auto`, `uvloop` or `asyncio`; None: asyncio's own. ConfigError
    when uvloop is asked for and not installed."""
    installed = find_spec("uvloop") is not None
    if name == "asyncio" or (name == "auto" and not installed):
        return None
    if not installed:
        raise ConfigError("node.event_loop is uvloop, which is not installed: pip install uvloop")
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def collect_garbage(thresholds: tuple[int, int, int] = GC_THRESHOLDS) -> None:
    """Call once all is imported, where collection was off for that: modules are kept out of it."""
    gc.freeze()
    gc.set_threshold(*thresholds)
    gc.enable()


def import_later() -> None:
    """Call in a thread once the node is ready, so that no client waits for these imports either."""
    for name in LATER:
        import_module(name)


def reuse_large_blocks() -> None:
    """Have glibc keep up to twice `LARGE_BLOCK_BYTES` of freed memory. Otherwise each answer of
    some MB gets new pages from the kernel, a quarter of the CPU that large fetches take.

    glibc goes by the largest block that was freed, unless the environment sets its limits
    (mallopt(3), M_MMAP_THRESHOLD). Nothing is written to this one, so it takes no memory itself.
    """
    bytes(LARGE_BLOCK_BYTES)


def settle() -> None:
    """Call once the node is started: objects that exist now are kept out of garbage collection."""
    gc.collect()
    # After a collection, so that no garbage is kept for ever.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    reuse_large_blocks()
