"""Webhooks: records of topics are sent to HTTP services."""
