"""A member of the MetaService whose controller plans at once; brokers are played."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.control import mover
from lakemq.meta_service.server.member import MetaMember


@pytest.fixture
def settings() -> MetaSettings:
    return MetaSettings(port=0)


@pytest.fixture
async def member(
    settings: MetaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MetaMember]:
    monkeypatch.setattr(mover, "PLAN_S", 0.05)
    member = MetaMember(settings, node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta")
    await member.start()
    yield member
    await member.stop()


@pytest.fixture
async def client(member: MetaMember) -> AsyncIterator[RemoteClient]:
    client = RemoteClient([member.addresses()["meta"]])
    yield client
    await client.close()
