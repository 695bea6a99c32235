"""Goal: the process is set up for serving, with the event loop that the settings name."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest

from lakemq import runtime
from lakemq.broker_core.api.errors import ConfigError


def test_the_event_loop_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.loop_factory("asyncio") is None
    factory = runtime.loop_factory("uvloop")
    assert factory is not None
    loop = factory()
    try:
        assert type(loop).__module__.startswith("uvloop")
    finally:
        loop.close()
    assert runtime.loop_factory("auto") is factory
    monkeypatch.setattr(runtime, "find_spec", lambda _: None)
    assert runtime.loop_factory("auto") is None
    with pytest.raises(ConfigError, match="pip install uvloop"):
        runtime.loop_factory("uvloop")


def test_what_stands_is_not_collected_again() -> None:
    code = (
        "import gc, sys; from lakemq.runtime import settle; settle(); "
        "print(gc.get_freeze_count() > 1000, gc.get_threshold(), sys.getswitchinterval())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"True {runtime.GC_THRESHOLDS} {runtime.SWITCH_INTERVAL_S}\n"
    assert gc.get_threshold() != runtime.GC_THRESHOLDS, "nobody else is changed"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is set up")
def test_memory_of_large_blocks_is_used_again() -> None:
    """Three blocks of 4 MB, 3,000 pages, are freed and allocated again without page faults."""
    code = (
        "import resource; from lakemq.runtime import settle; settle(); faults = []\n"
        "for _ in range(20):\n"
        "    blocks = [b'x' * (4 << 20) for _ in range(3)]; del blocks\n"
        "    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)\n"
        "print(faults[-1] - faults[1])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 3000, "18 rounds"


def test_the_raft_engine_leaves_the_socket_module_as_it_is() -> None:
    """pysyncobj's copy of `inet_ntop` is for Windows and fails everywhere else."""
    code = (
        "import socket, lakemq.meta_service.raft.engine; "
        "print(socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "127.0.0.1\n", run.stderr


@pytest.mark.parametrize("first", ["pysyncobj", "lakemq.meta_service.raft.engine"])
def test_the_raft_engine_leaves_other_users_their_own_pysyncobj(first: str) -> None:
    code = (
        f"import socket, sys; kept = socket.inet_ntop; import {first}; socket.inet_ntop = kept;"
        "before = {name for name in sys.modules if name.startswith('pysyncobj')};"
        "import lakemq.meta_service.raft.engine as engine;"
        "assert before == {name for name in sys.modules if name.startswith('pysyncobj')}, before;"
        "import pysyncobj, pysyncobj.pickle, pysyncobj.syncobj as theirs;"
        "assert theirs.HAS_CRYPTO and theirs.SyncObj is pysyncobj.SyncObj is not engine.SyncObj;"
        "assert theirs.pickle is pysyncobj.pickle is not engine._engine.pickle;"
        "print('unchanged')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "unchanged\n", run.stderr
