"""TLS and login of commands that reach a broker."""

from __future__ import annotations

import os
from dataclasses import replace

from lakemq.broker_core.api.command_line import BrokerOptions, secret
from lakemq.spark_plugin.access import Access, parse_access
from lakemq.spark_plugin.tiered_options import tiered_of


def access_of(broker: BrokerOptions) -> Access:
    """TLS and login as the options say; LAKEMQ_TIERED... as in `tiered_of`."""
    access = parse_access(
        {
            "tls.ca": broker.tls_ca,
            "tls.cert": broker.tls_cert,
            "tls.key": broker.tls_key,
            "token": secret("TOKEN") or "",
            "username": broker.username,
            "password": secret("PASSWORD") or "",
        }
    )
    return replace(access, tiered=tiered_of(os.environ))
