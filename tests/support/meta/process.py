"""One member of the MetaService as a process of its own, for tests and benchmarks.

Usage: meta_process.py CONFIG, a JSON file with node_id, host, data_dir, settings and timing.
Prints one line, the cluster id, when it serves. Ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.raft import state
from lakemq.meta_service.server.member import MetaMember
from lakemq.runtime import loop_factory, settle


async def main() -> None:
    config = json.loads(await asyncio.to_thread(Path(sys.argv[1]).read_text))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if config.get("timing"):
        timing = state.RaftTiming(**config["timing"])
        state.RaftTiming = lambda: timing  # type: ignore[misc, assignment]
    member = MetaMember(
        MetaSettings(**config["settings"]),
        node_id=config["node_id"],
        host=config["host"],
        data_dir=Path(config["data_dir"]),
    )
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await member.start()
    settle()
    sys.stdout.write(member.cluster_id + "\n")
    sys.stdout.flush()
    await stopping.wait()
    await member.stop()


# As `lakemq start` runs one: its event loop, its garbage collection, its thread switches.
with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
    runner.run(main())
