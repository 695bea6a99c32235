"""Record batches that are whole outside (size and both CRCs) and corrupt inside."""

from __future__ import annotations

from pathlib import Path

import google_crc32c

from lakemq.broker_core.api.records.batch import HAS_HEADERS, BatchHeader, pack_header, read_header
from lakemq.broker_core.api.types import Acks, Compression, TopicInfo
from lakemq.plugins.journal.segment.manifest import decode_manifest
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing.storage import open_alone


def sealed(body: bytes, *, records: int = 1, attributes: int = 0, raw_bytes: int = -1) -> bytes:
    """`body` under a header that fits it; `raw_bytes`: what it claims to decompress to."""
    raw_bytes = len(body) if raw_bytes < 0 else raw_bytes
    header = BatchHeader(
        attributes, len(body), google_crc32c.value(body), records, 0, 0, 0, -1, -1, raw_bytes,
        1_700_000_000_000, 1_700_000_000_000, records - 1,
    )  # fmt: skip
    return pack_header(header) + body


def garbage_lengths() -> bytes:
    """96 bytes whose one value is 2,147,483,647 bytes long, as its length says."""
    return sealed(bytes(4) + b"\xff\xff\xff\x7f" + bytes(8))


def no_frame() -> bytes:
    """A body that is no frame of its codec."""
    return sealed(b"no frame of zstd", attributes=Compression.ZSTD)


def bad_headers() -> bytes:
    """Columns that fit, and record headers that end in the middle of a name."""
    cell = b"\x09\x00na"
    lengths = b"".join(size.to_bytes(4, "little") for size in (1, len(cell)))
    return sealed(bytes(4) + lengths + b"v" + cell, attributes=HAS_HEADERS)


async def poison_logs(data_dir: Path) -> list[str]:
    """Append poison to every partition of a node that is down. The topics."""
    storage = JournalStorage(data_dir / "journal", JournalSettings())
    await storage.start()
    poisoned = []
    for path in sorted((data_dir / "journal").glob("topics/*/*/manifest")):
        manifest = decode_manifest(path.read_bytes())
        poisoned.append(manifest.topic)
        topic = TopicInfo(manifest.topic, manifest.topic_id, manifest.partition + 1)
        log = await open_alone(storage, topic, manifest.partition)
        for batch in (garbage_lengths(), no_frame(), bad_headers()):
            await log.append(batch, read_header(batch), Acks.LEADER)
    await storage.stop()
    return poisoned
