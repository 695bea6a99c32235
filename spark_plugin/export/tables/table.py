"""The port to a table: what an export stores in it, and how commits of exports exclude each other.

A table holds, in its own commits, for every export and topic: an *epoch* (the number of the process
that may commit; a newer process takes the next one, which fences the older), a random token of
that process, the number of the last committed *attempt*, a random token of the last commit, a mark
of the topic's id, and the next offset of every partition. Rows and offsets change in one commit, so
the stored offsets always match the rows.

Only its token identifies a commit: two processes may compute the same content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lakemq.spark_plugin.errors import ExportFenced, TableError

if TYPE_CHECKING:
    import pyarrow as pa


class ExportKey(NamedTuple):
    """Whose progress is meant."""

    export_id: str
    topic: str
    topic_id: str
    """32 hex digits."""
    partitions: tuple[int, ...]
    """Partitions that may have progress."""


@dataclass(frozen=True)
class Progress:
    """What a table says about one export of one topic."""

    epoch: int = 0
    attempt: int = 0
    """Number of the last committed attempt; attempts are numbered from 1 over all epochs."""
    process: int = 0
    """Token of the process that has the epoch; 0: a version without tokens committed."""
    commit: int = 0
    """Token of the last commit, another one for each; 0 as above."""
    topic_mark: int | None = None
    """`topic_mark` of the topic that was exported last; None: none was."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """Partition -> next offset, of the topic id in the key."""
    upsert_mark: int = 0
    """`key_mark` of an export that keeps one row for each key; 0: rows are appended."""


class WrittenFile(NamedTuple):
    """A Parquet file that an executor wrote and closed."""

    path: str
    """Relative to the table's location."""
    rows: int
    size_bytes: int
    footer: bytes
    """The file's Parquet metadata, as a file of its own (pyarrow's `write_metadata_file`)."""
    partition_values: tuple[str | None, ...] = ()


class LiveFile(NamedTuple):
    """A data file that a table consists of."""

    path: str
    """As the location's file system has it."""
    rows: int
    size_bytes: int
    partition_values: tuple[str | None, ...] = ()
    handle: Any = None
    """What the format's library needs to take the file out again."""


class TableCommit(NamedTuple):
    """A commit of a table."""

    name: str
    """As its format calls it, like `version 12`."""
    at_ms: int | None
    """When (ms since 1970, UTC); None: the table does not say."""


class TableConflict(Exception):
    """Another writer committed to the table first; the commit was not applied."""


class LakeTable(Protocol):
    """A table that exports append to. One object sees one state until `reload`."""

    location: str
    """URI or path of the folder that data files go to."""
    storage: Mapping[str, str]
    """Options of the object store that it is in, as in `Target`."""

    def arrow_schema(self) -> pa.Schema:
        """Schema that data files must have."""

    def full_schema(self) -> pa.Schema:
        """All columns, also those whose values the format keeps outside of data files."""

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of the state seen, without those that were deleted. TableError where the
        format's library can't read it."""

    def reload(self) -> None:
        """See the newest state."""

    def version(self) -> str:
        """The state seen, as its format calls it, like `version 12`."""

    def progress(self, key: ExportKey) -> Progress:
        """What the state seen holds about the export."""

    def data_files(self) -> list[str]:
        """Paths of the files that the state seen consists of, as the location's file system has
        them."""

    def commit_of(self, path: str) -> TableCommit | None:
        """The commit that brought a data file into the table; None: its log does not tell any
        more."""

    def live_files(self) -> list[LiveFile]:
        """The same, with what is known of them; without those that rows were deleted from since,
        which may not be rewritten as they are."""

    def partition_by(self) -> str:
        """What `--partition-by` said when the table was made."""

    def add_columns(self, schema: pa.Schema) -> None:
        """Give the table the columns of `schema` that it lacks, also within structs (rows that are
        there have null in them), and the wider types that `schema` has."""

    def expire(self, before_s: float) -> int:
        """Expire snapshots older than a time (s since 1970), which then cannot be read any more;
        returns how many."""

    def reachable_files(self) -> set[str]:
        """Paths of the files of all snapshots that can still be read."""

    def append(
        self,
        key: ExportKey,
        files: Sequence[WrittenFile],
        after: Progress,
        removed: Sequence[LiveFile] = (),
    ) -> None:
        """Add files, take others out and set the progress in one commit that can only follow the
        state seen, as far as this export and the removed files are concerned. TableConflict if it
        can't."""


Append = Callable[[LakeTable, ExportKey, Sequence[WrittenFile], Progress], None]


def topic_mark(topic_id: str) -> int:
    """The first 60 bits of a topic id: Delta keeps whole numbers only."""
    return int(topic_id[:15], 16)


def owns(holder: Progress, now: Progress) -> bool:
    """Whether the process that committed `holder` still has the epoch."""
    return (now.epoch, now.process) == (holder.epoch, holder.process)


def _is_same_state(before: Progress, now: Progress) -> bool:
    """Whether the export has no commit in between; a version without tokens leaves
    `commit` as it is."""
    return owns(before, now) and (now.attempt, now.commit) == (before.attempt, before.commit)


def taken_over(key: ExportKey, table: LakeTable, now: Progress, epoch: int) -> ExportFenced:
    """The error of a process that has lost the epoch to another one."""
    return ExportFenced(
        f"export {key.export_id} of topic {key.topic} was taken over by another process "
        f"({table.location} is at epoch {now.epoch}, attempt {now.attempt}; here epoch {epoch})"
    )


CONFLICTS_MAX = 50
"""Maximum retries of a commit after commits of others."""


def commit(
    table: LakeTable,
    key: ExportKey,
    files: Sequence[WrittenFile],
    before: Progress,
    after: Progress,
    pause: Callable[[int], None],
    append: Append | None = None,
) -> None:
    """Append exactly once. `pause(n)` waits before try n. `append` does more than
    `LakeTable.append` with the state that the table sees, and is called for each try.

    ExportFenced when another process of this export has committed since `before` was read. Commits
    of others (other exports, compaction) only make us try again. An error that leaves the outcome
    open is settled by reading the table. `after.commit` is a token that no other commit has.
    """
    if after.commit in (0, before.commit):
        raise ValueError("a commit needs a token of its own")
    for number in range(1, CONFLICTS_MAX + 1):
        try:
            # What `append` follows is what the table saw last, which may be later than `before`.
            if _is_same_state(before, table.progress(key)):
                if append is None:
                    table.append(key, files, after)
                else:
                    append(table, key, files, after)
                return
        except TableConflict:
            # Not applied, for sure: look below at who was first.
            pass
        except Exception:
            # A time-out, for instance: the store may have applied the commit and lost the answer.
            # Trying again blindly would add the files twice.
            if _landed(table, key, after):
                return
            raise
        table.reload()
        now = table.progress(key)
        # Ours, although it was answered as a conflict: a library or store may have repeated the
        # request itself.
        if now.commit == after.commit:
            return
        if not _is_same_state(before, now):
            raise taken_over(key, table, now, after.epoch)
        pause(number)
    raise TableError(
        f"{table.location}: {CONFLICTS_MAX} commits in a row lost against other writers"
    )


def take_epoch(
    table: LakeTable,
    key: ExportKey,
    epoch: int,
    following: Callable[[Progress], Progress],
    pause: Callable[[int], None],
) -> tuple[Progress, Progress]:
    """Commit `following(before)`, of an epoch that was taken in the export's head already, in
    another of its tables; (before, after). What processes of earlier epochs commit meanwhile only
    makes us try again. ExportFenced when one of a later epoch was here."""
    for _ in range(CONFLICTS_MAX):
        table.reload()
        before = table.progress(key)
        if before.epoch > epoch:
            raise taken_over(key, table, before, epoch)
        after = following(before)
        try:
            commit(table, key, [], before, after, pause)
            return before, after
        except ExportFenced:
            # `before` is out of date: another process was quicker. The check above tells whether
            # its epoch is a later one.
            continue
    raise TableError(f"{table.location}: {CONFLICTS_MAX} processes in a row began to commit here")


def _landed(table: LakeTable, key: ExportKey, after: Progress) -> bool:
    """Whether a commit with an unknown outcome is in the table."""
    try:
        table.reload()
        return table.progress(key).commit == after.commit
    except Exception:
        # Unknown is answered as not landed: the error is then raised, and the next run reads the
        # table.
        return False
