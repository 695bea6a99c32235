"""MQTT sessions that belong to no node: who has which, and how they move."""
