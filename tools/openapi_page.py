"""docs/openapi.json, from the routes of the plugins that are on without a section."""

from __future__ import annotations

import json
from typing import Any, cast

from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.plugins.admin.api.openapi import document_of
from lakemq.plugins.admin.api.table import RouteTable
from lakemq.plugins.admin.resources.all import resources
from lakemq.plugins.ledger.routes import LedgerRoutes
from lakemq.plugins.mqtt.bridge.metrics import BridgeRoutes
from lakemq.plugins.mqtt.ops.admin import MqttAdmin
from lakemq.plugins.native.groups.export_routes import ExportRoutes
from lakemq.plugins.native.groups.routes import GroupRoutes
from lakemq.plugins.native.queues.admin_routes import QueueRoutes

_VERSION = "0.1"
"""Not the distribution's: the page changes with the routes alone."""


def documented_routes() -> list[AnyRoute]:
    """Routes are only described: nothing of a node is asked for."""
    nothing = cast(Any, None)
    return [
        *resources(nothing, 0),
        *MqttAdmin(nothing).routes(),
        *BridgeRoutes("", lambda: ()).routes(),
        *GroupRoutes(nothing).routes(),
        *ExportRoutes(nothing).routes(),
        *QueueRoutes(nothing).routes(),
        *LedgerRoutes(nothing, nothing, nothing).routes(),
    ]


def openapi_page() -> str:
    document = document_of(RouteTable(documented_routes()), _VERSION)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
