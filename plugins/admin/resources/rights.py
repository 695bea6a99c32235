"""What a caller may see of a list."""

from __future__ import annotations

from collections.abc import Callable

from lakemq.broker_core.api.administration.node import CatalogAccess
from lakemq.broker_core.api.administration.routes import AdminRequest
from lakemq.broker_core.api.errors import NotAuthorized
from lakemq.broker_core.api.types import Operation, Resource


def may(
    catalog: CatalogAccess, request: AdminRequest, operation: Operation, kind: str, name: str
) -> bool:
    """Whether the caller may do that. Raises NotAuthenticated: its credentials have ended."""
    try:
        catalog.authorize(request.principal, operation, Resource(kind, name), request.context)
    except NotAuthorized:
        return False
    return True


def seen(catalog: CatalogAccess, kind: str) -> Callable[[str, AdminRequest], bool]:
    """(name, request) -> whether the caller may describe what has that name."""
    return lambda name, request: may(catalog, request, Operation.DESCRIBE, kind, name)
