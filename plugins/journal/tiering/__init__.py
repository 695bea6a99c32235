"""Sealed segments in an object store."""
