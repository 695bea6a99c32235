"""The gRPC services of the native protocol."""
