"""Errors of the MetaService as those of the broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lakemq.broker_core.api.errors import (
    Conflict,
    InvalidRequest,
    LakeMQError,
    OutcomeUnknown,
    Unavailable,
)
from lakemq.meta_service.api.errors import (
    AlreadyExists,
    CompareFailed,
    InvalidArgument,
    MetaError,
    NotFound,
)


@contextlib.contextmanager
def translated(missing: type[LakeMQError]) -> Iterator[None]:
    """Errors of the MetaService as those of the broker. `missing`: for what does not exist."""
    try:
        yield
    except NotFound as error:
        raise missing(str(error)) from None
    except (AlreadyExists, CompareFailed) as error:
        raise Conflict(str(error)) from None
    except InvalidArgument as error:
        raise InvalidRequest(str(error)) from None
    except MetaError as error:
        # The change may have been made: look before it is tried again.
        raise (Unavailable if error.definite else OutcomeUnknown)(str(error)) from None
