"""Clients that go on in a thread of their own while a test harms nodes."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod


class AsyncThread(ABC):
    """Runs `work`, once a subclass has set what that needs and called `__init__`."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        """What ended it before its time."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self.work())
        except BaseException as error:
            self.error = error

    @abstractmethod
    async def work(self) -> None:
        """Until it is told to stop."""
