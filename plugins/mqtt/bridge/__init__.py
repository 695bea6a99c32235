"""Bridges to remote MQTT brokers."""
