"""Fixtures of MQTT's integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.mqtt.raw_clients import close_all


@pytest.fixture
async def raw_clients() -> AsyncIterator[None]:
    """Closes after the test what `tests.support.mqtt.raw_clients.dial` has opened."""
    yield
    await close_all()
