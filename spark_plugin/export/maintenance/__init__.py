"""Audit, compaction, vacuum and dead letters of tables."""
