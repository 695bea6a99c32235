"""Errors of the MetaService in the words of the broker."""

from __future__ import annotations

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    OutcomeUnknown,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from lakemq.meta_service.api.errors import AlreadyExists, InvalidArgument, MetaError, NotFound


def broker_error(error: MetaError, name: str) -> LakeMQError:
    """The error for clients; `name`: the topic, or what else the request was about."""
    if isinstance(error, AlreadyExists):
        return TopicExists(f"topic {name!r} exists already")
    if isinstance(error, NotFound):
        return UnknownTopic(f"topic {name!r} does not exist")
    if isinstance(error, InvalidArgument):
        return InvalidRequest(str(error))
    # The change may have been made: the client must look before it tries again.
    if not error.definite:
        return OutcomeUnknown(f"{name}: {error}")
    return Unavailable(f"{name}: {error}")
