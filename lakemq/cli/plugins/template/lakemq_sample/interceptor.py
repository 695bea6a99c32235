"""What is done to records before they are stored."""

from __future__ import annotations

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import Columns, Principal


class SizeLimit:
    """Refuses values above a size. It runs on the event loop: never wait, read or ask the network
    here."""

    def __init__(self, value_max_bytes: int) -> None:
        self._value_max_bytes = value_max_bytes

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        """Records of one topic and sender as columns. What it returns has as many, in their order;
        a LakeMQError refuses them."""
        longest = max(len(value or b"") for value in columns.values)
        if longest > self._value_max_bytes:
            raise InvalidRequest(f"a value of {longest} bytes; the most is {self._value_max_bytes}")
        return columns
