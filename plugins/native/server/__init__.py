"""The gRPC server of the native protocol: connections, TLS, authentication."""
