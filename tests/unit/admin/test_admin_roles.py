"""Goal: each route of the admin API is for the roles that it should be for, and for nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lakemq.broker_core.api.administration.routes import AdminListing, AnyRoute
from lakemq.broker_core.api.errors import NotAuthorized
from lakemq.broker_core.api.types import NO_CONTEXT, AccessContext, Operation, Principal, Resource
from lakemq.broker_core.configuration.config import load_config
from lakemq.broker_core.security.authz.rule_book import RuleBook
from lakemq.plugins.admin.api.service import AdminService
from tests.support.node.administered import StubNode
from tools.openapi_page import documented_routes

ROLES: Final = ("guest", "viewer", "reader", "operator", "admin")

BY_ITEM: Final = {
    "GET exports", "GET groups", "GET ledger/devices", "GET ledger/partitions", "GET partitions",
    "GET queues", "GET schedules", "GET schema-ids/{id}", "GET schemas", "GET topics",
    "GET transactions", "GET whoami", "GET whoami/may",
    "DELETE schedules/{schedule_id}", "DELETE transactions/{kind}/{name}", "POST topics",
    "POST transactions/{kind}/{name}/abort",
    "GET schema-registry/contexts", "GET schema-registry/mode",
    "GET schema-registry/schemas/ids/{id}", "GET schema-registry/schemas/ids/{id}/subjects",
    "GET schema-registry/schemas/ids/{id}/versions", "GET schema-registry/schemas/types",
    "GET schema-registry/subjects",
}  # fmt: skip
"""Any caller who is let in may ask; what is answered and done depends on the rights to each item.
Before a route is added here: its handler must look."""
ADMIN: Final = {
    "DELETE groups/{group}", "DELETE keys/{key}", "DELETE queues/{group}/{topic}",
    "DELETE quotas/{who}", "DELETE rules/{rule}", "DELETE schemas/{subject}",
    "DELETE topics/{topic}", "DELETE users/{user}",
    "GET mqtt/retained/{topic_name}", "GET schemas/{subject}",
    "POST schemas/{subject}/check", "GET topics/{topic}/partitions/{partition}/records",
    "PATCH users/{user}", "POST keys", "POST rules", "POST schemas/{subject}",
    "POST topics/{topic}/partitions/{partition}/delete-records", "POST topics/{topic}/records",
    "POST meta/backup", "POST users", "PUT quotas/{who}",
    "GET schema-registry/subjects/{subject}/versions/{version}",
    "GET schema-registry/subjects/{subject}/versions/{version}/referencedby",
    "DELETE schema-registry/subjects/{subject}",
    "DELETE schema-registry/subjects/{subject}/versions/{version}",
    "POST schema-registry/subjects/{subject}", "POST schema-registry/subjects/{subject}/versions",
    "POST schema-registry/compatibility/subjects/{subject}/versions",
    "POST schema-registry/compatibility/subjects/{subject}/versions/{version}",
}  # fmt: skip
"""What reads or writes data, deletes it, or gives rights."""


class Catalog:
    def __init__(self, book: RuleBook) -> None:
        self._book = book

    def authorize(
        self, who: Principal, operation: Operation, resource: Resource, context: AccessContext
    ) -> None:
        if not self._book.authorize(who, operation, resource, context):
            raise NotAuthorized("no")


def expected(name: str) -> set[str]:
    if name in BY_ITEM:
        return set(ROLES)
    if name in ADMIN:
        return {"admin"}
    if name.startswith("GET "):
        return {"viewer", "reader", "operator", "admin"}
    return {"operator", "admin"}


def test_every_route_is_for_the_roles_that_it_should_be_for(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text('[security]\nunmatched = "deny"')
    book = RuleBook(load_config(file, {}).security, lambda: None)
    routes = documented_routes()
    node: Any = StubNode(Catalog(book))
    service = AdminService(node, routes, node.give_way)

    def may(role: str, route: AnyRoute, names: list[str]) -> bool:
        who = Principal("ann", roles=(role,))
        try:
            service.check_right(route, dict.fromkeys(names, "x"), who, NO_CONTEXT)
        except NotAuthorized:
            return False
        return True

    found: dict[str, set[str]] = {}
    for entry in service.table.entries:
        names = [*entry.names()]
        method = "GET" if isinstance(entry.route, AdminListing) else entry.route.method
        allowed = {role for role in ROLES if may(role, entry.route, names)}
        found[f"{method} {entry.route.path}"] = allowed
    assert found == {name: expected(name) for name in found}
    assert set(found) >= BY_ITEM | ADMIN and len(found) > 80
