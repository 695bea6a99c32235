"""Schemas of topics: formats, compatibility and validation."""
