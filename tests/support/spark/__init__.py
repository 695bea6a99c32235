"""Spark in tests."""
