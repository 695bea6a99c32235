"""Channels, TLS, login and calls."""
