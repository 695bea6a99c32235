"""Making files durable on each system, for every plugin: the MetaService's own."""

from lakemq.meta_service.api.durable_files import sync_all as sync_all
from lakemq.meta_service.api.durable_files import sync_data as sync_data
