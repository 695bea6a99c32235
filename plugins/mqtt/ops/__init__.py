"""MQTT operations: admin endpoints, commands, metrics, draining."""
