"""The routes of this plugin."""

from __future__ import annotations

from collections.abc import Sequence

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.plugins.admin.explain.routes import ExplainRoutes
from lakemq.plugins.admin.resources.access_control.access import AccessRoutes
from lakemq.plugins.admin.resources.access_control.audit import AuditRoutes
from lakemq.plugins.admin.resources.access_control.keys import KeyRoutes
from lakemq.plugins.admin.resources.cluster import ClusterRoutes
from lakemq.plugins.admin.resources.configuration import ConfigurationRoutes
from lakemq.plugins.admin.resources.meta import MetaRoutes
from lakemq.plugins.admin.resources.metrics import MetricsRoutes
from lakemq.plugins.admin.resources.nodes import NodeRoutes
from lakemq.plugins.admin.resources.partitions import PartitionRoutes
from lakemq.plugins.admin.resources.pending import PendingRoutes
from lakemq.plugins.admin.resources.records import RecordRoutes
from lakemq.plugins.admin.resources.schema_registry.routes import SchemaRegistryRoutes
from lakemq.plugins.admin.resources.schemas import SchemaRoutes
from lakemq.plugins.admin.resources.topics import TopicRoutes


def resources(node: AdministeredNode, body_max_bytes: int) -> Sequence[AnyRoute]:
    """In the order of the documentation."""
    return [
        *ClusterRoutes(node).routes(),
        *NodeRoutes(node).routes(),
        *MetaRoutes(node).routes(),
        *MetricsRoutes(node).routes(),
        *ConfigurationRoutes(node).routes(),
        *TopicRoutes(node).routes(),
        *PartitionRoutes(node).routes(),
        *RecordRoutes(node, body_max_bytes).routes(),
        *SchemaRoutes(node).routes(),
        *SchemaRegistryRoutes(node).routes(),
        *PendingRoutes(node).routes(),
        *AccessRoutes(node).routes(),
        *KeyRoutes(node).routes(),
        *AuditRoutes(node).routes(),
        *ExplainRoutes(node).routes(),
    ]
