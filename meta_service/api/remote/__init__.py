"""The client of a MetaService elsewhere, over gRPC."""
