"""A process that runs a single member and writes as fast as it can, until it is killed.

Usage: meta_writer.py DATA_DIR ACKED_FILE LOG_MAX_BYTES RUN. Each acknowledged write is noted in
ACKED_FILE by one `write` call, so what is in the file was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.raft import state
from lakemq.meta_service.server.member import MetaMember


async def main() -> None:
    data_dir, acked_path, log_max_bytes, run = sys.argv[1:]
    # A small log, so that snapshots and compaction happen all the time.
    timing = state.RaftTiming(log_max_bytes=int(log_max_bytes))
    state.RaftTiming = lambda: timing  # type: ignore[misc, assignment]
    member = MetaMember(
        MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=Path(data_dir)
    )
    await member.start()
    client = member.client()
    acked = os.open(acked_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    counter = 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()

    async def write_on(writer: int) -> None:
        nonlocal counter
        while True:
            counter += 1
            key = f"{run}-{writer}-{counter}"
            revision = await client.put(key.encode(), b"v" * 100)
            os.write(acked, f"{key} {revision}\n".encode())

    await asyncio.gather(*(write_on(writer) for writer in range(32)))


asyncio.run(main())
