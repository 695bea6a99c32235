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
    code = "NOT_FOUND"


class AlreadyExists(MetaError):
    code = "ALREADY_EXISTS"


class InvalidArgument(MetaError):
    code = "INVALID_ARGUMENT"


class PermissionDenied(MetaError):
    code = "PERMISSION_DENIED"


class CompareFailed(MetaError):
    code = "COMPARE_FAILED"


class Compacted(MetaError):
    code = "COMPACTED"

    def __init__(self, message: str, compact_revision: int = 0) -> None:
        super().__init__(message)
        self.compact_revision = compact_revision


class NotLeader(MetaError):
    code = "NOT_LEADER"
    retriable = True


class NoLeader(MetaError):
    code = "NO_LEADER"
    retriable = True


class Overloaded(MetaError):
    code = "OVERLOADED"
    retriable = True


class OutcomeUnknown(MetaError):
    code = "OUTCOME_UNKNOWN"
    definite = False
    retriable = True


class SessionExpired(MetaError):
    code = "SESSION_EXPIRED"


class UnsupportedCommand(MetaError):
    code = "UNSUPPORTED_COMMAND"


class StorageFailed(MetaError):
    code = "STORAGE_FAILED"
    definite = False


class StartupFailed(MetaError):
    code = "STARTUP_FAILED"


_ALL: list[type[MetaError]] = [MetaError, *MetaError.__subclasses__()]
BY_CODE: dict[str, type[MetaError]] = {error.code: error for error in _ALL}
"""Error classes by the code that stands for them on the wire."""
