"""MQTT listeners: TCP, TLS, WebSocket and the engine that carries out effects."""
