"""The gRPC services that the controller stands behind: nodes and topics."""
