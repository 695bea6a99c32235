"""Settings of a MetaService member: section `[meta]` of the TOML file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Port = Annotated[int, Field(ge=0, le=65535)]


class MetaSettings(BaseModel):
    """This node's member of the MetaService."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    host: str = ""
    """Address to bind to; empty: `node.host`."""
    port: _Port = 9701
    """TCP port of the MetaService's gRPC."""
    raft_port: _Port = 9702
    """TCP port on which members of the Raft group talk to each other."""
