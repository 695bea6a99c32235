"""Exports of one topic that run step by step, in an order that a test decides.

Each process is a thread, of which one runs at a time. Before whatever others could notice (a table
read or changed, a folder made, a file deleted, a task run) it stands at a *point*, and the test
decides whose turn it is. The table and its folders are in memory here; the decisions are the real
ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakemq.spark_plugin.export.job.task_results import (
    DataFile,
    DeadLetterFile,
    RangeRead,
    TaskResult,
)
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tables.table import (
    ExportKey,
    LiveFile,
    Progress,
    TableConflict,
    WrittenFile,
)


class Killed(BaseException):
    """Stands for kill -9: nothing that the process would still do is done."""


class Actor:
    """A process, as a thread."""

    def __init__(self, name: str, life: Callable[[], None]) -> None:
        self.name = name
        self.ended = False
        self.killed = False
        self.failure: BaseException | None = None
        self._life = life
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._life()
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
        self.ended = True
        self._back.release()

    def step(self) -> None:
        """Let it run to its next point."""
        self._go.release()
        self._back.acquire()
        if self.ended:
            self._thread.join()

    def point(self) -> None:
        """Called in the actor's thread."""
        self._back.release()
        self._go.acquire()
        if self.killed:
            raise Killed


class Stage:
    """Whose turn it is. Outside of actors a point is nothing."""

    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}

    def add(self, name: str, life: Callable[[], None]) -> Actor:
        self.actors[name] = Actor(name, life)
        return self.actors[name]

    def point(self) -> None:
        actor = self.actors.get(threading.current_thread().name)
        if actor is not None and not actor.killed:
            actor.point()

    def play(
        self, choose: Callable[[Sequence[Actor]], Actor], look: Callable[[], None] = lambda: None
    ) -> None:
        """Until all have ended; `look` is called after every step."""
        while running := [each for each in self.actors.values() if not each.ended]:
            choose(running).step()
            look()
        for actor in self.actors.values():
            if actor.failure is not None:
                raise actor.failure


@dataclass
class Disk:
    """Files of all tables: full path -> content."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)


class MemoryFolder:
    """What the export uses of `files.Folder`."""

    local = True

    def __init__(self, location: str, disk: Disk, stage: Stage) -> None:
        self._root, self._disk, self._stage = location, disk, stage

    def full_path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def create(self, path: str) -> None:
        self._stage.point()
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            self._disk.folders.add(self.full_path("/".join(parts[:end])))

    def delete(self, path: str) -> None:
        self._stage.point()
        if self.full_path(path) not in self._disk.folders:
            raise FileNotFoundError(path)
        self._disk.folders.discard(self.full_path(path))
        for each in self.files_below(path):
            del self._disk.files[each]

    def delete_file(self, path: str) -> None:
        self._stage.point()
        if self._disk.files.pop(self.full_path(path), None) is None:
            raise FileNotFoundError(path)

    def names(self, path: str) -> list[str]:
        self._stage.point()
        prefix = self.full_path(path) + "/"
        below = [*self._disk.files, *self._disk.folders]
        return sorted(
            {each[len(prefix) :].split("/")[0] for each in below if each.startswith(prefix)}
        )

    def files_below(self, path: str) -> dict[str, float]:
        prefix = self.full_path(path) + "/"
        return {each: 0.0 for each in self._disk.files if each.startswith(prefix)}

    def write(self, path: str, data: bytes) -> None:
        """FileNotFoundError in a folder that was deleted."""
        if self.full_path(path.rpartition("/")[0]) not in self._disk.folders:
            raise FileNotFoundError(path)
        self._disk.files[self.full_path(path)] = data

    def read(self, path: str) -> bytes:
        if self.full_path(path) not in self._disk.files:
            raise FileNotFoundError(path)
        return self._disk.files[self.full_path(path)]

    def sync(self, *paths: str) -> None:
        if not all(self.full_path(path) in self._disk.folders for path in paths):
            raise FileNotFoundError(str(paths))


@dataclass
class Store:
    """A table's commits, as all processes share them."""

    location: str
    schema: pa.Schema
    progress: Progress = Progress()
    files: list[WrittenFile] = field(default_factory=list)
    number: int = 0
    fault: Callable[[], str] = lambda: ""
    """What becomes of a commit: `error`, `landed` (and an error), `late`, or empty: it is made."""
    late: tuple[int, Callable[[], None]] | None = None
    """A commit under way whose process was told of an error, and the state that it follows."""

    def deliver(self) -> None:
        """The late commit arrives."""
        late, self.late = self.late, None
        if late is not None and late[0] == self.number:
            late[1]()


class MemoryTable:
    """One process's view of a `Store`; a commit can only follow the state seen."""

    def __init__(self, store: Store, stage: Stage) -> None:
        self.location, self.storage = store.location, {}
        self._store, self._stage = store, stage
        self._number, self._progress, self._files = 0, Progress(), list[WrittenFile]()
        self.reload()

    def arrow_schema(self) -> pa.Schema:
        return self._store.schema

    def reload(self) -> None:
        self._stage.point()
        store = self._store
        self._number, self._progress = store.number, store.progress
        self._files = list(store.files)

    def progress(self, key: ExportKey) -> Progress:
        return self._progress

    def data_files(self) -> list[str]:
        return [f"{self.location}/{file.path}" for file in self._files]

    def live_files(self) -> list[LiveFile]:
        return []

    def partition_by(self) -> str:
        raise NotImplementedError

    def add_columns(self, schema: pa.Schema) -> None:
        raise NotImplementedError

    def expire(self, before_s: float) -> int:
        raise NotImplementedError

    def reachable_files(self) -> set[str]:
        return set(self.data_files())

    def append(
        self,
        key: ExportKey,
        files: Sequence[WrittenFile],
        after: Progress,
        removed: Sequence[LiveFile] = (),
    ) -> None:
        self._stage.point()
        store, fault = self._store, self._store.fault()
        if fault == "error":
            raise OSError("the store can't be reached")
        if store.number != self._number:
            raise TableConflict(f"{store.number} follows {self._number}")

        def land() -> None:
            store.number += 1
            store.progress = replace(after, offsets=dict(after.offsets))
            store.files.extend(files)

        if fault == "late":
            store.late = (store.number, land)
            raise OSError("no answer")
        land()
        if fault == "landed":
            raise OSError("no answer")
        self.reload()


@dataclass
class Tasks:
    """Runs tasks in memory: a data file or a dead-letter file is the text of its offsets."""

    disk: Disk
    stage: Stage
    bad: frozenset[tuple[int, int]]
    """(partition, offset) of records that are dead letters."""
    name: Callable[[], str]
    """For a file, another one with each call."""

    def __call__(self, tasks: Sequence[WriteTask]) -> list[TaskResult]:
        return [result for task in tasks for result in self._run(task)]

    def _run(self, task: WriteTask) -> list[TaskResult]:
        self.stage.point()
        _, _, partition, start, end = task.offsets[:5]
        bad = [n for n in range(start, end) if (partition, n) in self.bad]
        new = [n for n in bad if n not in task.dlq_known]
        good = [n for n in range(start, end) if n not in bad]
        results: list[TaskResult] = [RangeRead(partition, start, end, len(good) + len(new))]
        for kind, offsets, location, folder in (
            (DataFile, good, task.location, task.folder),
            (DeadLetterFile, new, task.dlq_location, task.dlq_folder),
        ):
            if offsets:
                self._write(location, folder, partition, offsets)  # of an attempt that lost
                file = self._write(location, folder, partition, offsets)
                results.append(kind(file))
        return results

    def _write(self, location: str, folder: str, partition: int, rows: list[int]) -> WrittenFile:
        path = f"{folder}/{self.name()}"
        text = " ".join(f"{partition}:{each}" for each in rows).encode()
        MemoryFolder(location, self.disk, self.stage).write(path, text)
        return WrittenFile(path, len(rows), len(text), b"")


def rows_of(store: Store, disk: Disk) -> list[tuple[int, int]]:
    """(partition, offset) of all rows of the table. KeyError if a file that it names is gone."""
    found: list[tuple[int, int]] = []
    for file in store.files:
        for each in disk.files[f"{store.location}/{file.path}"].decode().split():
            partition, offset = each.split(":")
            found.append((int(partition), int(offset)))
    return sorted(found)


def stored_offsets(disk: Disk) -> Callable[[Any, ExportKey, Any], dict[int, tuple[int, ...]]]:
    """`dead_letters.stored_offsets` for tables in memory."""

    def stored(
        table: MemoryTable, key: ExportKey, start: dict[int, int]
    ) -> dict[int, tuple[int, ...]]:
        rows = [
            [int(each) for each in place.split(":")]
            for path in table.data_files()
            for place in disk.files[path].decode().split()
        ]
        return {
            partition: tuple(sorted(n for p, n in rows if p == partition and n >= first))
            for partition, first in start.items()
        }

    return stored
