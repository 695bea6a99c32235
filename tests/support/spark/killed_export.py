"""An export in a process of its own that kills itself (SIGKILL) at a named point.

    python -m tests.support.spark.killed_export SETTINGS-JSON POINT STEP

POINT is one of `POINTS`, `before_commit`, `after_rewrite` (of an upsert), or `none`; STEP says at
which commit of the process (from 1). At `together` the process lives: before its first commit it
says so, and waits for `together`.
Tasks run in the process itself: what is tested are the steps between journal and table.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from lakemq.spark_plugin.export.job import exporter, write_task
from lakemq.spark_plugin.export.job.landing import STAGED
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance import dead_letters
from lakemq.spark_plugin.export.tables import file_writer
from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.export.upserting.upsert_table import UpsertTable

POINTS = (
    "before_epoch",
    "after_epoch",
    "in_orphans",
    "after_folder",
    "in_task",
    "after_tasks",
    "after_dead_letters",
    "after_commit",
)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_here(tasks: list[WriteTask]) -> list[TaskResult]:
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


def before(owner: Any, name: str, now: Callable[..., bool]) -> None:
    """Die instead of calling `owner.name` when `now(arguments)`."""
    call = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: die() if now(*a) else call(*a, **k))


def after(owner: Any, name: str, now: Callable[..., bool]) -> None:
    call = getattr(owner, name)

    def then_die(*arguments: Any, **named: Any) -> Any:
        answer = call(*arguments, **named)
        if now(*arguments):
            die()
        return answer

    setattr(owner, name, then_die)


def wait_for_others() -> None:
    """Hold back the first commit, which takes the epoch, until told to go on."""
    commit = exporter.lake.commit

    def late(*arguments: Any) -> None:
        exporter.lake.commit = commit  # type: ignore[attr-defined]
        print("ready", flush=True)
        sys.stdin.readline()
        commit(*arguments)

    exporter.lake.commit = late  # type: ignore[attr-defined]


def arm(point: str, step: int) -> None:
    """Set the trap. Commits with files are counted; the one that takes the epoch has none."""
    count = {"commits": 0, "tasks": 0}

    def nth(kind: str) -> bool:
        count[kind] += 1
        return count[kind] == step

    def always(*_: object) -> bool:
        return True

    def with_files(_table: object, _key: object, files: object, *_: object) -> bool:
        return bool(files) and nth("commits")

    def nth_folder(_folder: object, path: str) -> bool:
        name = path.removesuffix(f"/{STAGED}").rpartition("/")[2]
        return re.fullmatch(rf"\d+-{step}-\w+", name) is not None

    def at_check(*_: object) -> bool:
        return nth("commits")

    traps: dict[str, Callable[[], object]] = {
        "none": lambda: None,
        "together": wait_for_others,
        "before_epoch": lambda: before(exporter.lake, "commit", always),
        "after_epoch": lambda: after(exporter.lake, "commit", always),
        "in_orphans": lambda: after(Folder, "delete", always),
        "after_folder": lambda: after(Folder, "create", nth_folder),
        "in_task": lambda: after(file_writer.FileWriter, "flush", lambda *_: nth("tasks")),
        "after_tasks": lambda: before(exporter, "check_complete", at_check),
        "after_dead_letters": lambda: after(
            dead_letters.DeadLetters, "commit", lambda *_: nth("commits")
        ),
        "after_rewrite": lambda: after(UpsertTable, "_rewrite", at_check),
        "before_commit": lambda: before(exporter.lake, "commit", with_files),
        "after_commit": lambda: after(exporter.lake, "commit", with_files),
    }
    traps[point]()


def main(text: str, point: str, step: str) -> None:
    arm(point, int(step))
    value = json.loads(text)
    value["target"] = Target(**value["target"])
    export = make_exporter(ExportSettings(**value), run_here)
    export.start()
    while export.step():
        pass
    export.close()


def start(settings: dict[str, Any], point: str = "none", step: int = 1) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(settings), point, str(step)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def together(processes: list[subprocess.Popen[bytes]]) -> None:
    """Let processes that stand at `together` go on, once all do."""
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", "a process ended before its first commit"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()


def ends(process: subprocess.Popen[bytes]) -> int:
    """Exit code; what the process said is shown when the test fails."""
    try:
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    print(said.decode()[-2000:])
    return process.returncode


if __name__ == "__main__":
    main(*sys.argv[1:])
