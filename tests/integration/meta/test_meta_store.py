"""The real store keeps what the catalog relies on: order, prefixes, whole batches, snapshots."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.storage.snapshot_stream import FolderSink, FolderSource
from lakemq.meta_service.storage.snapshots import SnapshotMaker
from lakemq.meta_service.storage.store import Store
from tests.support.meta.catalog_rig import Catalog, stored
from tests.support.meta.disk import MemoryStore
from tests.support.seeds import examples
from tests.unit.meta_service.test_meta_catalog import put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def test_a_scan_gives_all_keys_of_its_prefix_and_no_other(store: Store) -> None:
    """rocksdict's upper bound dangles: scans by it ended after the first key, at times."""
    keys = [b"k\x00node/a", b"k\x00node/b", b"k\x00topic/t", b"kx", b"k\xff\xff", b"l"]
    store.write({key: key for key in keys})
    for _ in range(50):
        for prefix in (b"k\x00node/", b"k\x00", b"k", b"k\xff", b"nothing", b""):
            found = [key for key, _ in store.scan(prefix)]
            assert found == sorted(key for key in keys if key.startswith(prefix))


_keys = st.binary(min_size=1, max_size=3)
_batches = st.lists(st.dictionaries(_keys, st.none() | st.binary(max_size=3), max_size=5))


@given(_batches, st.lists(st.binary(max_size=2), max_size=4))
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_the_store_is_the_one_that_simulations_use(
    store: Store, batches: list[dict[bytes, bytes | None]], prefixes: list[bytes]
) -> None:
    store.write(dict.fromkeys((key for key, _ in store.scan(b"")), None))
    model = MemoryStore()
    for batch in batches:
        store.write(batch)
        model.write(batch)
    for prefix in [b"", *prefixes]:
        assert list(store.scan(prefix)) == list(model.scan(prefix))


def test_a_snapshot_goes_over_the_wire_and_is_installed(tmp_path: Path, store: Store) -> None:
    catalog = Catalog()
    for number in range(200):
        store.write(stored(catalog.do(put(b"k%d" % number, bytes(500)))))
    maker = SnapshotMaker(store, tmp_path)
    assert maker.begin()
    while maker.finished() is None:
        time.sleep(0.001)
    source = maker.open_newest()
    assert isinstance(source, FolderSource)
    other = Store(tmp_path / "other")
    other.write({b"old": b"gone"})
    sink = FolderSink(
        tmp_path / "in", tmp_path / "received", source.log_index, source.term, source.size
    )
    while sink.position < sink.size:
        sink.write(source.read(sink.position, 997))
    sink.seal()
    while sink.sealed() is None:
        time.sleep(0.001)
    assert sink.sealed() is True
    other.install(sink)
    assert list(other.scan(b"")) == list(store.scan(b""))
    other.close()
    source.close()


@pytest.mark.parametrize("place", [2, 20, -1])
def test_a_snapshot_damaged_on_its_way_is_not_taken(
    tmp_path: Path, store: Store, place: int
) -> None:
    store.write(stored(Catalog().do(put(b"k", bytes(500)))))
    maker = SnapshotMaker(store, tmp_path)
    maker.begin()
    while maker.finished() is None:
        time.sleep(0.001)
    source = maker.open_newest()
    assert isinstance(source, FolderSource)
    data = bytearray(source.read(0, source.size))
    data[place] ^= 1
    sink = FolderSink(tmp_path / "in", tmp_path / "received", 1, 1, source.size)
    sink.write(bytes(data))
    sink.seal()
    while sink.sealed() is None:
        time.sleep(0.001)
    assert sink.sealed() is False
    assert not (tmp_path / "received").exists()
    sink.discard()
    source.close()


@pytest.mark.parametrize("left", [(".new",), (".old", ".new"), ("", ".old"), ("", ".new")])
def test_a_crash_inside_an_install_is_mended(tmp_path: Path, left: tuple[str, ...]) -> None:
    """Before, between and behind the two renames of `install`."""
    for suffix in left:
        made = Store(tmp_path / f"store{suffix}")
        made.write({b"which": suffix.encode()})
        made.close()
    store = Store(tmp_path / "store")
    assert store.get(b"which") == (b"" if "" in left else b".new")
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_store_in_use_is_told(tmp_path: Path, store: Store) -> None:
    with pytest.raises(StartupFailed, match="in use by another process"):
        Store(tmp_path / "store")
