"""Goal: tests that run at once never get each other's ports."""

from __future__ import annotations

import subprocess
import sys

COUNT = 3000
"""Many blocks: of two that draw without regard for each other, some would be the same."""
DRAWN = f"""
from lakemq.local_cluster.ports import free_port, free_ports
print(*free_ports({COUNT} - 1), free_port(), flush=True)
input()
"""


def test_no_port_is_given_twice() -> None:
    """Both processes still run, and have bound none of the ports that they were given."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DRAWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    drawn: list[str] = []
    for each in processes:
        assert each.stdout is not None
        drawn += each.stdout.readline().split()
    for each in processes:
        each.communicate("\n", timeout=60)
    assert len(drawn) == len(set(drawn)) == 2 * COUNT
