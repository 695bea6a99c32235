"""The life of sessions."""
