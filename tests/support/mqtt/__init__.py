"""MQTT in tests."""
