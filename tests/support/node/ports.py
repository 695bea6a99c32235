"""Ports that stay free until a test's own server takes them, again and again."""

from __future__ import annotations

from lakemq.local_cluster.ports import free_port, free_ports

__all__ = ["free_port", "free_ports"]
