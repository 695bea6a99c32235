"""An interceptor: records that came over the line protocol say so in a header. Pure."""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Principal
from lakemq_line.access import PROTOCOL

HEADER: Final = "line-client"


class OriginHeader:
    """Adds the header `line-client` with the client's name."""

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        if principal.attributes.get("protocol") != PROTOCOL:
            return columns
        header = encode_headers(((HEADER, principal.name.encode()),))
        before = columns.headers or [b""] * len(columns.values)
        return columns._replace(headers=[each + header for each in before])
