"""The durable Raft log: what pysyncobj calls its journal.

Entries are buffered until `sync`, which writes and fsyncs them all at once (group commit). Nothing
is acknowledged, voted or counted before `sync` returned. Compaction writes a new file, fsyncs it
and renames it, so a crash leaves either the old log or the new one. The first entry is the
boundary: it is in the state machine already and only lends its index and term.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, overload

from lakemq.meta_service.raft.log.files import Disk, File
from lakemq.meta_service.raft.log.log_format import (
    LOG_HEADER,
    Entry,
    LogDamaged,
    encode_log_header,
    encode_record,
    encode_vote,
    parse_log,
    parse_vote,
)

LOG_NAME: Final = "raft.log"
VOTE_NAME: Final = "raft.vote"
NEW_NAME: Final = "raft.new"
"""There while this member does not know what it may have promised on a disk that it had before."""
NOOP: Final = b"\x01"
"""pysyncobj's NO_OP command."""


class LogFailed(Exception):
    """The disk refused a write or an fsync. The log takes nothing more: the member must stop."""


def reconcile(log: RaftLog, applied_index: int, applied_term: int) -> None:
    """Make the log fit the state at a start. What was applied is committed: it outranks the log.

    The log lacks or contradicts the state only after a crash between installing a snapshot and
    resetting the log.
    """
    if applied_index > log.first_index and log.term_at(applied_index) != applied_term:
        log.reset(applied_index, applied_term)


class RaftLog:
    """Entries, term and vote of one member. Used by one thread only."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._failed = False
        self._pending: list[bytes] = []
        self.syncs = 0
        # A crash before the rename leaves these: the old files still hold.
        disk.remove(LOG_NAME + ".new")
        disk.remove(VOTE_NAME + ".new")
        self._open_vote()
        self._open_log()

    # ------------------------------------------------------------ opening

    def _open_vote(self) -> None:
        self._term, self._voted_for = 0, None
        if not self._disk.exists(VOTE_NAME):
            # Starting with term 0 could give a second vote in a term that has been voted in.
            if self._disk.exists(LOG_NAME):
                raise LogDamaged("the vote file is missing beside the log")
            self._save_vote()
            return
        file = self._disk.open(VOTE_NAME)
        try:
            self._term, self._voted_for = parse_vote(file.read())
        finally:
            file.close()

    def _open_log(self) -> None:
        self.is_new = self._disk.exists(NEW_NAME)
        if not self._disk.exists(LOG_NAME):
            # The mark before the log: a crash between the two must not leave an empty log that
            # passes for one that forgot nothing.
            self._write_new(NEW_NAME, b"")
            self.is_new = True
            self._entries: list[Entry] = []
            self._positions: list[int] = []
            self._replace_file([Entry(NOOP, 1, 0)])
            return
        self._file: File = self._disk.open(LOG_NAME)
        data = self._file.read()
        parsed = parse_log(data)
        if not parsed.entries:
            raise LogDamaged("the log's first record is unreadable")
        self._entries = parsed.entries
        self._positions = parsed.positions
        self._end = parsed.end
        if parsed.end < len(data):
            # `parse_log` has refused damage to what was durable, so this tail was never
            # acknowledged.
            self._file.truncate(parsed.end)
        # What was written by a process that died may still be in the page cache alone.
        self._file.sync()
        self.synced_index = self.last_index

    # ------------------------------------------------------------ reading

    @property
    def first_index(self) -> int:
        """Index of the boundary entry."""
        return self._entries[0].log_index

    @property
    def last_index(self) -> int:
        """Index of the last entry, durable or not."""
        return self._entries[-1].log_index

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self._entries[-1].term

    @property
    def size_bytes(self) -> int:
        """Length of the log file once all that was added is written (bytes)."""
        return self._end

    def term_at(self, index: int) -> int | None:
        """Term of an entry; None when the log does not hold it."""
        at = index - self.first_index
        return self._entries[at].term if 0 <= at < len(self._entries) else None

    def entries_from(self, index: int, bytes_max: int) -> list[Entry]:
        """Entries from an index on, at least one if there is one, about `bytes_max` in all."""
        start = index - self.first_index
        size = 0
        for at in range(start, len(self._entries)):
            size += len(self._entries[at].command)
            if size >= bytes_max:
                return self._entries[start : at + 1]
        return self._entries[start:]

    def first_index_of_term_at(self, index: int) -> int:
        """First index of the run of entries that share the term of the entry at `index`."""
        at = index - self.first_index
        term = self._entries[at].term
        while at > 0 and self._entries[at - 1].term == term:
            at -= 1
        return self._entries[at].log_index

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        return self._entries[at]

    # ------------------------------------------------------------ writing

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry; it is durable after `sync`."""
        if index != self.last_index + 1 or term < self.last_term:
            raise LogFailed(
                f"entry ({index}, term {term}) does not follow ({self.last_index}, "
                f"term {self.last_term})"
            )
        entry = Entry(bytes(command), index, term)
        record = encode_record(entry, self.synced_index)
        self._entries.append(entry)
        self._positions.append(self._end)
        self._end += len(record)
        self._pending.append(record)

    def sync(self) -> None:
        """Make everything added so far durable. Raises LogFailed, and then for ever."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        # `_end` counts what is pending, so the batch begins that many bytes before it.
        self._guard(lambda: self._file.write(self._end - len(data), data))
        self._guard(self._file.sync)
        self._pending.clear()
        self.synced_index = self.last_index
        self.syncs += 1

    def truncate_from(self, index: int) -> None:
        """Drop the entries from an index on: they conflict with the leader's."""
        at = index - self.first_index
        if at <= 0:
            raise LogFailed(f"asked to drop the boundary entry {self.first_index}")
        self.sync()
        self._end = self._positions[at]
        del self._entries[at:], self._positions[at:]
        self._guard(lambda: self._file.truncate(self._end))
        # Durable before anything is written in its place: old records must not show up behind new.
        self._guard(self._file.sync)
        self.synced_index = self.last_index

    def compact_to(self, index: int) -> None:
        """Drop the entries below an index, which becomes the boundary."""
        at = index - self.first_index
        if at <= 0:
            return
        self.sync()
        self._replace_file(self._entries[at:])

    def reset(self, index: int, term: int) -> None:
        """Start again behind a state that holds everything up to an index."""
        self._pending.clear()
        self._replace_file([Entry(NOOP, index, term)])

    def settle(self) -> None:
        """From here on this member votes like any other: it lacks nothing that it ever promised."""
        if self.is_new:
            self.sync()
            self._guard(lambda: self._disk.remove(NEW_NAME))
            self.is_new = False

    def _replace_file(self, entries: list[Entry]) -> None:
        parts = [encode_log_header()]
        positions: list[int] = []
        end = LOG_HEADER.size
        for entry in entries:
            positions.append(end)
            # The file is renamed into place only when all of it is durable, so each record may say
            # that the one before it was.
            parts.append(encode_record(entry, entry.log_index - 1))
            end += len(parts[-1])
        self._guard(lambda: self._write_new(LOG_NAME, b"".join(parts)))
        # Closed after the rename: a failure before leaves the open log as it was.
        if hasattr(self, "_file"):
            self._file.close()
        self._file = self._disk.open(LOG_NAME)
        self._entries, self._positions, self._end = list(entries), positions, end
        self.synced_index = self.last_index

    def _write_new(self, name: str, data: bytes) -> None:
        file = self._disk.open(name + ".new", fresh=True)
        try:
            file.write(0, data)
            file.sync()
        finally:
            file.close()
        self._disk.replace(name + ".new", name)

    def _guard(self, action: Callable[[], None]) -> None:
        if self._failed:
            raise LogFailed("the Raft log failed before and takes nothing more")
        try:
            action()
        except OSError as error:
            # After a failed fsync the kernel may have dropped the pages: no retry can be trusted.
            self._failed = True
            raise LogFailed(f"the Raft log cannot be written: {error}") from error

    def _save_vote(self) -> None:
        data = encode_vote(self._term, self._voted_for)
        self._guard(lambda: self._write_new(VOTE_NAME, data))

    # ------------------------------------------------------------ what pysyncobj calls

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        """Durable when it returns: a vote must not be given twice."""
        self._term, self._voted_for = term, voted_for
        self._save_vote()

    def getCurrentTerm(self) -> int:
        """The term stored last."""
        return self._term

    def getVotedForNodeId(self) -> str | None:
        """The candidate voted for in that term; None: no vote was given in it."""
        return self._voted_for

    def setRaftCommitIndex(self, index: int) -> None:
        """pysyncobj calls this before it applies: the leader's own entries must count by then."""
        self.sync()

    def getRaftCommitIndex(self) -> int:
        """The commit index is not stored: the state machine knows what it applied."""
        return self.first_index

    def onOneSecondTimer(self) -> None:
        """Nothing is put off to a timer."""

    def close(self) -> None:
        """Write what is left, unless the disk has failed, and close the file."""
        self._destroy()

    def _destroy(self) -> None:
        if not self._failed:
            self.sync()
        self._file.close()
