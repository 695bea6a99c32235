"""Queues by the native protocol and the admin API."""
