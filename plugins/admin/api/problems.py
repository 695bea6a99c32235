"""Errors as the admin API answers them: problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from pydantic import Field, ValidationError

from lakemq.broker_core.api.administration.routes import Answer
from lakemq.broker_core.api.errors import (
    BY_CODE,
    Conflict,
    GroupNotEmpty,
    InvalidRequest,
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    OffsetOutOfRange,
    OutcomeUnknown,
    TopicExists,
    Unavailable,
)

CONTENT_TYPE: Final = "application/problem+json"
OUTCOME_UNKNOWN: Final = "urn:lakemq:problem:outcome-unknown"
"""Type of a problem: the request may have been carried out. Other problems have none."""
_CONFLICTS: Final = (Conflict, GroupNotEmpty, TopicExists)
_TEXT_MAX: Final = 500
_FOUND_MAX: Final = 20
_COUNTED_MAX: Final = 1_000
"""Faults of a request that are made out one by one."""


class Fault(Answer):
    """One thing that is wrong with a request."""

    where: str
    """Path of the field or parameter."""
    problem: str


class ProblemAnswer(Answer):
    """Why a request was not carried out (RFC 9457)."""

    type: str = "about:blank"
    """`urn:lakemq:problem:outcome-unknown` of a change that may have been made."""
    title: str
    """The status in words."""
    status: int
    detail: str
    """What was wrong, and what helps."""
    code: str
    """Stable, for programs."""
    retriable: bool
    """The same request may succeed later, and has done nothing yet."""
    errors: list[Fault] = Field(default_factory=list)
    """Each thing that was wrong, where there may be several."""


class Problem(Exception):
    """Ends a request."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retriable: bool = False,
        errors: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.answer = ProblemAnswer(
            type=OUTCOME_UNKNOWN if code == OutcomeUnknown.code else "about:blank",
            title=HTTPStatus(status).phrase, status=status, detail=detail, code=code,
            retriable=retriable, errors=list(errors),
        )  # fmt: skip

    def body(self) -> bytes:
        """As JSON."""
        return self.answer.model_dump_json().encode()


def problem_of(error: LakeMQError) -> Problem:
    """The error of the broker as a problem. 401 asks browsers and curl for a user."""
    headers: dict[str, str] = {}
    if isinstance(error, OutcomeUnknown):
        # A program that tries again what is retriable would make the change twice.
        return Problem(504, error.code, str(error))
    if isinstance(error, NotAuthenticated):
        status = 401
        headers["WWW-Authenticate"] = 'Basic realm="lakemq", charset="UTF-8"'
    elif isinstance(error, NotAuthorized):
        status = 403
    elif isinstance(error, _CONFLICTS):
        status = 409
    elif isinstance(error, OffsetOutOfRange):
        status = 416
    elif error.code.startswith("UNKNOWN"):
        status = 404
    else:
        status = 503 if error.retriable else 400
    return Problem(status, error.code, str(error), retriable=error.retriable, headers=headers)


def error_of(problem: Problem) -> LakeMQError:
    """Inverse of `problem_of`, as far as programs tell errors apart."""
    error = BY_CODE.get(problem.code, Unavailable if problem.answer.retriable else InvalidRequest)
    return error(str(problem))


def invalid(where: str, error: ValidationError) -> Problem:
    """What pydantic found, one fault for each; the values themselves are left out, since one may
    be a password. Who sends very many gets their number: each would cost the loop its time."""
    count = error.error_count()
    if count > _COUNTED_MAX:
        fault = Fault(where=where, problem=f"{count} fields are wrong or unknown")
        return Problem(400, "INVALID_REQUEST", f"{where}: {fault.problem}", errors=[fault])
    faults = [
        Fault(where=".".join(map(str, (where, *each["loc"])))[:_TEXT_MAX], problem=each["msg"])
        for each in error.errors(include_url=False, include_input=False)[:_FOUND_MAX]
    ]
    detail = "; ".join(f"{fault.where}: {fault.problem}" for fault in faults)
    return Problem(400, "INVALID_REQUEST", detail[:_TEXT_MAX], errors=faults)
