"""Names what holds the event loop: one line in the log and two metrics for each time it stood still
for longer than a threshold.

The loop notes the time once per half threshold; a thread looks whether it did. When it did not, the
thread takes the loop thread's stack, and names the innermost line of our own code in it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

_log: Final = logging.getLogger(__name__)
_OURS: Final = str(Path(__file__).parents[1]) + "/"
_PACKAGES: Final = ("lakemq", "tests")


class LoopWatchdog:
    """Watches the running loop between `start` and `stop`."""

    def __init__(self, threshold_s: float) -> None:
        self.threshold_s = threshold_s
        self.stalls = 0
        self.stalled_s = 0.0
        """Of all stalls together."""
        self._noted_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Call on the loop."""
        self._note(asyncio.get_running_loop())
        self._thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="loop-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Call on the loop."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _note(self, loop: asyncio.AbstractEventLoop) -> None:
        self._noted_s = time.monotonic()
        self._timer = loop.call_later(self.threshold_s / 2, self._note, loop)

    def _watch(self, thread: int) -> None:
        # No lock: `_noted_s` is one float, which one thread writes and another reads.
        while not self._stopping.wait(self.threshold_s / 4):
            noted_s = self._noted_s
            # The loop notes the time every half threshold: 1.5 thresholds without a note are a
            # stall of one threshold at least.
            if time.monotonic() - noted_s < 1.5 * self.threshold_s:
                continue
            # Taken while the loop stands still; the frame may run on, but its line is where the
            # time went.
            place = place_of(sys._current_frames().get(thread))
            # Wait for its end, to report a stall once and with its length.
            while self._noted_s == noted_s and not self._stopping.wait(self.threshold_s / 20):
                pass
            # A note would have been due half a threshold after the last one: that part was no
            # stall.
            self._report(time.monotonic() - noted_s - self.threshold_s / 2, place)

    def _report(self, held_s: float, place: str) -> None:
        self.stalls += 1
        self.stalled_s += held_s
        _log.warning("the event loop was held for %.0f ms by %s", held_s * 1000, place)

    def observe(self, meter: Meter) -> None:
        """Make the numbers metrics, read when asked."""

        def stalls(_: CallbackOptions) -> Iterable[Observation]:
            yield Observation(self.stalls)

        def seconds(_: CallbackOptions) -> Iterable[Observation]:
            yield Observation(self.stalled_s)

        meter.create_observable_counter(
            "lakemq.node.loop.stalls",
            [stalls],
            "{stall}",
            "Times that the event loop was held too long.",
        )
        meter.create_observable_counter(
            "lakemq.node.loop.stalled",
            [seconds],
            "s",
            "How long the event loop was held, added up.",
        )


def place_of(frame: FrameType | None) -> str:
    """`file:line in function` of the innermost frame, and of our own code that called it."""
    if frame is None:
        return "?"
    inner, at = _named(frame), frame
    while at.f_back is not None and not _is_ours(at):
        at = at.f_back
    outer = _named(at)
    return inner if outer == inner or not _is_ours(at) else f"{outer} (in {inner})"


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_OURS) and file[len(_OURS) :].partition("/")[0] in _PACKAGES


def _named(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.removeprefix(_OURS)}:{frame.f_lineno} in {code.co_qualname}"
