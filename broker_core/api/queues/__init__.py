"""Types and port of queues."""
