"""The member as a whole and its gRPC services."""
