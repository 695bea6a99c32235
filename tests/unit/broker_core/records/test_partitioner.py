"""Partitioner: the same partition as Kafka's for the same key, and a cache that stays small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.records import partitioner
from lakemq.broker_core.api.records.partitioner import murmur2, partition_of

# Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS.items())
def test_murmur2_gives_kafkas_hashes(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFF_FFFF


def java_murmur2(data: bytes) -> int:
    """Kafka's `Utils.murmur2`, line by line, as a second opinion on tails and signs."""
    m, mask = 0x5BD1E995, 0xFFFF_FFFF
    h = (0x9747B28C ^ len(data)) & mask
    for i in range(len(data) // 4):
        i4 = i * 4
        k = data[i4] + (data[i4 + 1] << 8) + (data[i4 + 2] << 16) + (data[i4 + 3] << 24)
        k = k * m & mask
        k ^= k >> 24
        k = k * m & mask
        h = h * m & mask
        h ^= k
    tail = len(data) & ~3
    if len(data) % 4 == 3:
        h ^= data[tail + 2] << 16
    if len(data) % 4 >= 2:
        h ^= data[tail + 1] << 8
    if len(data) % 4 >= 1:
        h ^= data[tail]
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ h >> 15


@given(st.binary(max_size=64))
def test_murmur2_agrees_with_kafkas_loop(data: bytes) -> None:
    assert murmur2(data) == java_murmur2(data)


@given(st.binary(max_size=600), st.integers(1, 10_000))
def test_partition_is_kafkas_and_in_range(key: bytes, partitions: int) -> None:
    expected = (java_murmur2(key) & 0x7FFF_FFFF) % partitions

    assert partition_of(key, partitions) == expected
    assert partition_of(key, partitions) == expected  # from the cache


@pytest.mark.parametrize("size", [255, 256, 257, 1000])
def test_long_keys_go_where_kafka_puts_them(size: int) -> None:
    for number in range(20):
        key = b"%d" % number + b"k" * size
        key = key[:size]
        assert partition_of(key, 7) == (java_murmur2(key) & 0x7FFF_FFFF) % 7


def test_keys_spread_over_partitions() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[partition_of(b"air/sensor-%d" % number, 8)] += 1

    assert min(counts) > 850 and max(counts) < 1_150


def test_long_keys_do_not_fill_memory() -> None:
    """Keys come from the network: what the cache may hold is bounded in bytes, not only in keys."""
    before = partitioner._partition_of_short.cache_info().currsize
    longest_cached = b"k" * partitioner.CACHED_KEY_MAX_BYTES
    partition_of(longest_cached, 3)
    assert partitioner._partition_of_short.cache_info().currsize == before + 1

    partition_of(longest_cached + b"k", 3)
    assert partitioner._partition_of_short.cache_info().currsize == before + 1
