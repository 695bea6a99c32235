"""Nodes in tests."""
