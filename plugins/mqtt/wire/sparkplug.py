"""Topic names of Sparkplug B, as an MQTT server that is aware of it knows them.

Source: Eclipse Sparkplug 3.0.0, 10.1.4 "Sparkplug Aware MQTT Server": birth messages are made
available, retained, as *certificates* `$sparkplug/certificates/<topic name of the birth>`.
"""

from __future__ import annotations

from typing import Final

RESERVED: Final = "$sparkplug/"
"""What names begin with that the server alone publishes to, where it is Sparkplug aware."""
CERTIFICATES: Final = RESERVED + "certificates/"
_NAMESPACE: Final = "spBv1.0"
_LEVELS: Final = {"NBIRTH": 4, "DBIRTH": 5}
"""Message type -> levels of its topic names: a birth of a device names that, too."""


def certificate_name(name: str) -> str | None:
    """Under which topic name a birth message is retained; None: `name` is no birth's."""
    levels = name.split("/", 5)
    if levels[0] != _NAMESPACE or len(levels) < 4 or not all(levels):
        return None
    return CERTIFICATES + name if _LEVELS.get(levels[2]) == len(levels) else None
