"""The consumer of a queue."""
