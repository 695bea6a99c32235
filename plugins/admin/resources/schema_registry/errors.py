"""Errors in the form and with the numbers of Confluent's Schema Registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lakemq.broker_core.api.errors import IncompatibleSchema, InvalidRequest, UnknownSchema
from lakemq.plugins.admin.api.problems import Problem

UNKNOWN_SUBJECT: Final = 40401
UNKNOWN_VERSION: Final = 40402
UNKNOWN_SCHEMA: Final = 40403
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_COMPATIBILITY: Final = 42203
NOT_PERMITTED: Final = 42205
_OF_STATUS: Final = {401: 40101, 403: 40301}
_CODES: Final = {404: UnknownSchema.code, 409: IncompatibleSchema.code}
"""For the audit log."""


class RegistryProblem(Problem):
    """A problem with a number of its own."""

    def __init__(self, number: int, detail: str) -> None:
        """`number`: the status and two digits more; 409 is a status alone."""
        status = number if number < 1000 else number // 100
        super().__init__(status, _CODES.get(status, InvalidRequest.code), detail)
        self.number = number


@contextmanager
def schema_errors() -> Iterator[None]:
    """What the registry says of a schema that was sent."""
    try:
        yield
    except IncompatibleSchema as error:
        raise RegistryProblem(409, f"schema is incompatible: {error}") from None
    except InvalidRequest as error:
        raise RegistryProblem(INVALID_SCHEMA, str(error)) from None


def error_body(problem: Problem) -> bytes:
    """These two fields and no others: Confluent's Java client refuses more."""
    number = problem.number if isinstance(problem, RegistryProblem) else problem.status
    number = _OF_STATUS.get(number, number)
    return json.dumps({"error_code": number, "message": str(problem)}).encode()
