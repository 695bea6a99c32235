"""Logs, brokers, catalog and network of simulated replication."""
