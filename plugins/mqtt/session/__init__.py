"""The MQTT protocol state machine of one connection and its session."""
