"""Retained messages that all nodes hold."""
