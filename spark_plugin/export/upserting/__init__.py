"""Exports that keep one row for each key (`--mode upsert`)."""
