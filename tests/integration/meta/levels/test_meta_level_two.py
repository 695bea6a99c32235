"""Goal: data of feature level 2 is read for ever, with what was retired since.

`tests/data/meta/level-2` was written by a member of level 2: a node, a topic, keys; and MQTT
sessions, shared subscriptions, tier manifests and a lease, which no broker ever used.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.server.member import MetaMember

DATA = Path(__file__).parents[3] / "data" / "meta" / "level-2"


@pytest.mark.parametrize("stored", [True, False], ids=["store", "log alone"])
async def test_a_member_of_level_two_starts_with_its_data(tmp_path: Path, stored: bool) -> None:
    """`log alone`: every command is applied once more; those that are retired change nothing."""
    folder = tmp_path / "meta"
    shutil.copytree(DATA, folder)
    if not stored:
        shutil.rmtree(folder / "store")
    for _ in range(2):
        member = MetaMember(
            MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=folder
        )  # fmt: skip
        await member.start()
        client = member.client()
        (node,) = await client.nodes()
        assert (node.node_id, node.state, node.storage_id) == ("n1", "active", "")
        ((_, (topic,))) = await client.topics()
        assert [p.leader for p in topic.partitions] == ["n1", "n1"]
        found = await client.get(b"key")
        assert found is not None and found.value == b"value"
        _, rows = await client.scan(b"")
        assert {row.key for row in rows} >= {b"key"}
        assert int((await client.status()).detail["feature_level"]) == 4
        await client.put(b"more", b"1")
        await member.stop()
