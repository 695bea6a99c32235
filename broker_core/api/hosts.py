"""Which hosts are this machine: what plugins may do without TLS or a login depends on it."""

from lakemq.meta_service.api.hosts import is_loopback as is_loopback
from lakemq.meta_service.api.hosts import join_host as join_host
