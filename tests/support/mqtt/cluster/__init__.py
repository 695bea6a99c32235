"""Whole MQTT engines of several nodes in one process, in virtual time."""
