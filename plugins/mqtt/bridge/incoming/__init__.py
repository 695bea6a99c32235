"""Publishes on their way from a remote broker."""
