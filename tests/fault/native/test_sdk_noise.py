"""Goal: a client that rides out `kill -9` of its broker says nothing on stderr: no task that Python
complains of, no event loop that was closed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import lakemq
from tests.support.node.node import NodeProcess, ports_kept

SCRIPT = """
import asyncio, gc, sys, threading
import lakemq

async def main():
    stop = asyncio.Event()
    async with lakemq.Client(sys.argv[1]) as client, await client.producer() as producer:
        async def produce():
            while not stop.is_set():
                await producer.send("t", b"more")
                await asyncio.sleep(0.002)
            await producer.send("t", b"last")

        async def consume():
            async with client.subscribe("t", group="g") as consumer:
                async for record in consumer:
                    if record.value == b"last":
                        return

        async def work():
            async for message in client.queue("t", group="q"):
                try:
                    await message.ack()
                except lakemq.LakeMQError:
                    pass  # another delivery will come
                if stop.is_set():
                    return

        tasks = [asyncio.create_task(each()) for each in (produce, consume, work)]
        print("going", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        stop.set()
        await asyncio.gather(*tasks)

def blocking():
    with lakemq.connect(sys.argv[1]) as client, client.subscribe("t", group="b") as consumer:
        for record in consumer:
            if record.value == b"last":
                return

thread = threading.Thread(target=blocking)
thread.start()
asyncio.run(main())
thread.join()
gc.collect()
"""


def test_nothing_is_said_on_stderr(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node", ports_kept("native"))
    with node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=1)
        script = tmp_path / "client.py"
        script.write_text(SCRIPT)
        with subprocess.Popen(
            [sys.executable, "-W", "error::RuntimeWarning", str(script), node.native],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "going\n"
            for _ in range(2):
                grown(client)
                node.kill()
                node.start()
            grown(client)
            _, said = process.communicate("stop\n", timeout=60)
    assert (process.returncode, said) == (0, "")


def grown(client: lakemq.SyncClient) -> None:
    """Returns when there are more records than now, and somebody has read some."""

    def end() -> int:
        return client.describe_topic("t").partitions[0].high_watermark

    deadline, first = time.monotonic() + 60, end()
    while end() < first + 100:
        assert time.monotonic() < deadline
        time.sleep(0.1)
