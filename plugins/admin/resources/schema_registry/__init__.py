"""The HTTP API of Confluent's Schema Registry, over the registry of the broker."""
