"""Errors of the MetaService.

MetaError
├── NotFound             no such key, topic, node
├── AlreadyExists
├── InvalidArgument      names the field
├── PermissionDenied     the caller's certificate names neither a node nor an operator
├── CompareFailed        a compare-and-set whose compare did not hold
├── Compacted            watch or read from a revision that is gone; has `compact_revision`
├── NotLeader            definite: was not applied
├── NoLeader             definite: was not applied; try again
├── Overloaded           definite: was not applied; try again
├── OutcomeUnknown       ambiguous: may or may not have been applied
├── SessionExpired       definite: this attempt was not applied; an earlier one may have been
├── UnsupportedCommand   the cluster's feature level is too low
├── StorageFailed        the member's disk failed; the member stops
└── StartupFailed        the member cannot start: folder locked, port taken, wrong library
"""

from __future__ import annotations


class MetaError(Exception):
    """Root. `code` is stable and goes over the wire; `definite`: surely not applied."""

    code: str = "INTERNAL"
    definite: bool = True
    retriable: bool = False


class NotFound(MetaError):
    """The key, topic or node does not exist."""

    code = "NOT_FOUND"


class AlreadyExists(MetaError):
    """The name or id is taken."""

    code = "ALREADY_EXISTS"


class InvalidArgument(MetaError):
    """The request is wrong; the message names the field."""

    code = "INVALID_ARGUMENT"


class PermissionDenied(MetaError):
    """The caller's certificate names neither a node nor an operator."""

    code = "PERMISSION_DENIED"


class CompareFailed(MetaError):
    """A compare-and-set whose compare did not hold; read again and retry."""

    code = "COMPARE_FAILED"


class Compacted(MetaError):
    """A watch or read from a revision whose history is gone; start from a fresh read."""

    code = "COMPACTED"

    def __init__(self, message: str, compact_revision: int = 0) -> None:
        super().__init__(message)
        self.compact_revision = compact_revision


class NotLeader(MetaError):
    """This member is not the Raft leader; the command was not applied."""

    code = "NOT_LEADER"
    retriable = True


class NoLeader(MetaError):
    """The Raft group has no leader at the moment; the command was not applied."""

    code = "NO_LEADER"
    retriable = True


class Overloaded(MetaError):
    """Too many commands are pending; the command was not applied."""

    code = "OVERLOADED"
    retriable = True


class OutcomeUnknown(MetaError):
    """The command may or may not have been applied."""

    code = "OUTCOME_UNKNOWN"
    definite = False
    retriable = True


class SessionExpired(MetaError):
    """The client's session for deduplication has expired; open a new one."""

    code = "SESSION_EXPIRED"


class UnsupportedCommand(MetaError):
    """The cluster's feature level is too low: a member does not know the command."""

    code = "UNSUPPORTED_COMMAND"


class StorageFailed(MetaError):
    """The member's disk failed; the member stops."""

    code = "STORAGE_FAILED"
    definite = False


class StartupFailed(MetaError):
    """The member cannot start."""

    code = "STARTUP_FAILED"


_ALL: list[type[MetaError]] = [MetaError, *MetaError.__subclasses__()]
BY_CODE: dict[str, type[MetaError]] = {error.code: error for error in _ALL}
"""Error classes by the code that stands for them on the wire."""
