"""Fixtures of the journal's unit tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.unit.journal.rig import Rig


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that the test drives itself."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop) -> Rig:
    return Rig(loop)
